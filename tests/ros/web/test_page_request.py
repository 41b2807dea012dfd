"""What a page may ask for, and the frames that all pages share: each is made once."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from ttm.datasets.frames import encode_jpeg
from ttm.policy import UserError
from ttm_policy.contract import load_contract
from ttm_policy.web import robot as live_cameras
from ttm_policy.web.robot import MOST_BYTES, LiveCameras
from ttm_policy.web.server import ACTIONS, read_request


def test_a_request_has_the_values_of_its_action() -> None:
    request = read_request('{"do": "steer", "id": 3, "axes": {"base.0": 0.5, "base.1": -1}}')
    assert (request.do, request.number) == ("steer", 3)
    assert request.values == {"axes": {"base.0": 0.5, "base.1": -1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{}", '{"do": 3}', '{"do": "fly"}', '{"do": "start", "id": -1}',
        '{"do": "start", "id": true}', '{"do": "start", "more": 1}', '{"do": "steer"}',
        '{"do": "steer", "axes": []}', '{"do": "steer", "axes": {"a": 1.5}}',
        '{"do": "steer", "axes": {"a": NaN}}', '{"do": "steer", "axes": {"a": true}}',
        '{"do": "steer", "axes": {"a": "1"}}', '{"do": "steer", "axes": {"a": 1e400}}',
        '{"do": "stop", "success": 1}', '{"do": "stop", "success": null}', '{"do": "instruct", "text": " "}',
        '{"do": "instruct", "text": "a\\u001bb"}', '{"do": "instruct", "text": null}',
        '{"do": "delete", "episode": 0}', "[" * 8000,
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        read_request(text)


def test_random_values_are_refused_or_good() -> None:
    """Every accepted request is one that its action can take."""
    rng = random.Random(0)
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1e9,
        "",
        "x" * 1001,
        "wave",
        [],
        {},
        {"a": 2},
        {"a": 0.5},
    ]
    accepted = 0
    for _ in range(500):
        do = rng.choice([*ACTIONS, "fly", None])
        keys = rng.sample(["axes", "success", "text", "episode", "same", "id"], rng.randint(0, 3))
        data = {"do": do, **{key: rng.choice(values) for key in keys}}
        try:
            request = read_request(json.dumps(data))
        except UserError:
            continue
        accepted += 1
        assert request.values.keys() == ACTIONS[request.do].keys()
    assert accepted > 20


class Subscriber:
    """Stands for the node: it only keeps what is called with each message."""

    receive: Callable[[bytes], None]

    def create_subscription(self, kind: Any, topic: str, receive: Any, qos: Any, raw: bool) -> None:
        self.receive = receive


def test_each_message_is_read_once_whether_it_is_good_or_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bytes] = []

    def jpeg(data: bytes, source: Any) -> bytes:
        read.append(data)
        if data == b"damaged":
            raise UserError("a frame is damaged")
        return data

    monkeypatch.setattr(live_cameras, "_jpeg", jpeg)
    source, node = load_contract().images[0], Subscriber()
    cameras = LiveCameras(node, [source])  # type: ignore[arg-type]
    assert cameras.frame(source.name) is None
    for data, shown in ((b"damaged", None), (b"good", b"good"), (b"damaged", b"good")):
        node.receive(data)
        for _ in range(3):
            frame = cameras.frame(source.name)
            assert (frame and frame.jpeg) == shown
            assert bool(cameras.problems) is (data == b"damaged")
    assert read == [b"damaged", b"good", b"damaged"]


def test_a_jpeg_is_passed_on_if_its_header_is_one_and_it_is_not_too_large() -> None:
    source = replace(load_contract().images[0], type="sensor_msgs/CompressedImage")
    node, good = Subscriber(), encode_jpeg(np.zeros((8, 8, 3), np.uint8), 80).tobytes()
    cameras = LiveCameras(node, [source])  # type: ignore[arg-type]
    for data, words in (
        (good, ""),
        (b"\xff\xd8\xff" + bytes(100), "cannot be used"),
        (good + bytes(MOST_BYTES), "lower the camera's size or its quality"),
    ):
        node.receive(serialize_message(CompressedImage(data=array("B", data))))
        frame = cameras.frame(source.name)
        assert frame is not None
        assert frame.jpeg == good
        assert words in cameras.problems.get(source.name, "")
        assert bool(cameras.problems) is bool(words)
