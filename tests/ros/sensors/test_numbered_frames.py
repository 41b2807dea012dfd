"""Numbers in frames, and the messages of an observation."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import EXECUTED_ACTION, ImageSource, load_contract
from ttm_policy.messages import (
    image_to_frame,
    input_types,
    ns_to_stamp,
    observation_messages,
    read_vector,
)
from ttm_policy.sensors import camera_load
from ttm_policy.sensors.camera_load import LEAST_WIDTH, picture, read_numbers, write_number


def _as_jpeg(frame: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def test_numbers_are_read_back_from_jpegs_of_low_quality() -> None:
    frames = []
    for number in (0, 1, 2**20 - 1, 123_456):
        frame = picture(48, LEAST_WIDTH, seed=number % 7)
        write_number(frame, number)
        frames.append(_as_jpeg(frame, quality=20))
    assert read_numbers(np.array(frames)).tolist() == [0, 1, 2**20 - 1, 123_456]


def test_every_input_has_a_message_of_its_topic_from_which_its_values_are_read(
    observations: list[dict[str, np.ndarray]],
) -> None:
    contract = load_contract()
    did = np.arange(SPEC.action_size, dtype=np.float32)
    values = {**observations[0], EXECUTED_ACTION: did}
    messages = observation_messages(contract, values, ns_to_stamp(5))
    assert {topic: type(message) for topic, message in messages.items()} == input_types(contract)
    for source in contract.inputs:
        message = messages[source.topic]
        if isinstance(source, ImageSource):
            found = image_to_frame(message, source, SPEC.camera(source.name))
        else:
            found = read_vector(message, source)
        np.testing.assert_array_equal(found, values[source.name])
        assert message.header.stamp == ns_to_stamp(5)


def test_a_load_without_a_file_for_its_figures_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["camera_load"])
    monkeypatch.setattr(camera_load, "StopSignals", object)
    monkeypatch.setattr(camera_load.CameraLoad, "record", lambda self: {})
    assert camera_load.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("camera_load: error: parameter out is empty; give")
    assert said.count("\n") == 1
