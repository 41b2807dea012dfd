"""Conversions to messages and back: images of every encoding, numbers to the last bit, observations."""

from __future__ import annotations

import io
from array import array
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from PIL import Image as PillowImage
from sensor_msgs.msg import CompressedImage, Image, JointState

from ttm.policy import CameraSpec
from ttm.policy.errors import MalformedObservation, MissingObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import EXECUTED_ACTION, ImageSource, load_contract
from ttm_policy.inputs import JointStates
from ttm_policy.messages import (
    MESSAGE_TYPES,
    CommandCodec,
    frame_to_image,
    image_to_frame,
    input_types,
    ns_to_stamp,
    observation_messages,
    read_vector,
    write_vector,
)

CAMERA = CameraSpec("head", 4, 6)
RAW = ImageSource("head", "head/image_raw", "sensor_msgs/Image")
FRAME = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def _image(pixels: np.ndarray, encoding: str, padding: int = 0) -> Image:
    """pixels: (H, W, depth); each row is followed by `padding` bytes that are not pixels."""
    rows = pixels.reshape(len(pixels), -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    height, width = pixels.shape[:2]
    return Image(
        height=height,
        width=width,
        encoding=encoding,
        step=padded.shape[1],
        data=array("B", padded.tobytes()),
    )


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8"])
def test_colour_images_become_rgb_whatever_their_row_step(encoding: str, padding: int) -> None:
    pixels = FRAME[:, :, ::-1] if encoding.startswith("bgr") else FRAME
    if encoding.endswith("a8"):
        pixels = np.concatenate([pixels, np.full((4, 6, 1), 7, np.uint8)], axis=2)
    frame = image_to_frame(_image(pixels, encoding, padding), RAW, CAMERA)
    assert frame.flags["C_CONTIGUOUS"]
    assert np.array_equal(frame, FRAME)


def test_grey_images_fill_all_channels() -> None:
    frame = image_to_frame(_image(FRAME[:, :, :1], "mono8"), RAW, CAMERA)
    assert np.array_equal(frame, FRAME[:, :, :1].repeat(3, axis=2))


@pytest.mark.parametrize("kind", ["sensor_msgs/Image", "sensor_msgs/CompressedImage"])
def test_frames_survive_both_message_types(kind: str) -> None:
    source = ImageSource("head", "head/image", kind)
    assert np.array_equal(
        image_to_frame(frame_to_image(FRAME, source, Time()), source, CAMERA), FRAME
    )


def test_jpeg_is_decoded() -> None:
    buffer = io.BytesIO()
    PillowImage.new("RGB", (6, 4), (200, 10, 10)).save(buffer, format="JPEG")
    message = CompressedImage(format="jpeg", data=array("B", buffer.getvalue()))
    frame = image_to_frame(message, ImageSource("head", "t", "sensor_msgs/CompressedImage"), CAMERA)
    assert np.abs(frame.astype(int) - (200, 10, 10)).max() < 10


def test_other_sizes_are_refused_unless_the_contract_resizes() -> None:
    large = _image(FRAME.repeat(2, axis=0).repeat(2, axis=1), "rgb8")
    with pytest.raises(MalformedObservation, match=r"gives 12x8 frames.*6x4.*resize: true"):
        image_to_frame(large, RAW, CAMERA)
    resizing = ImageSource("head", "head/image_raw", "sensor_msgs/Image", resize=True)
    assert np.array_equal(
        image_to_frame(large, resizing, CAMERA), FRAME
    )  # the area mean of equal pixels
    for source in (RAW, resizing):
        with pytest.raises(MalformedObservation, match=r"gives 6x2 frames.*6x4: .*larger"):
            image_to_frame(_image(FRAME[:2], "rgb8"), source, CAMERA)
        assert image_to_frame(large, source, None).shape == (8, 12, 3)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (_image(FRAME[:, :, :1], "16UC1"), "encoding is '16UC1'"),
        (
            Image(height=4, width=6, encoding="rgb8", step=18, data=array("B", bytes(10))),
            "sent 10 bytes",
        ),
        (CompressedImage(format="jpeg", data=array("B", b"nonsense")), "neither a JPEG nor a PNG"),
    ],
)
def test_broken_images_are_named(message: Any, words: str) -> None:
    with pytest.raises(MalformedObservation, match=words):
        image_to_frame(message, RAW, CAMERA)


def _random_floats(rng: np.random.Generator, count: int) -> np.ndarray:
    """(count,) float32 of all magnitudes, subnormal ones among them."""
    values = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(0.1))


def test_actions_cross_the_topics_bit_by_bit() -> None:
    codec = CommandCodec(load_contract(), SPEC)
    rng = np.random.default_rng(0)
    for _ in range(500):
        action = _random_floats(rng, SPEC.action_size)
        action[SPEC.binary_mask] = rng.integers(0, 2, SPEC.binary_mask.sum())
        back = codec.decode(codec.encode(action, Time()))
        assert np.array_equal(back.view(np.uint32), (action + np.float32(0)).view(np.uint32))


def test_dividing_by_the_tick_and_back_is_exact_for_every_float32() -> None:
    values = _random_floats(np.random.default_rng(1), 1_000_000)
    for scale in (0.05, 20.0, 1 / 3, 7.0):
        for period_s in (0.2, 0.1, 1 / 30):
            there = values.astype(np.float64) * scale / period_s
            assert np.array_equal((there / scale * period_s).astype(np.float32), values)


def test_proprioception_crosses_the_topics_bit_by_bit() -> None:
    rng = np.random.default_rng(2)
    for source in load_contract().vectors:
        for _ in range(200):
            values = _random_floats(rng, len(source.fields))
            message = MESSAGE_TYPES[source.type]()
            write_vector(message, source, values)
            assert np.array_equal(read_vector(message, source), values)


def test_a_plain_twist_carries_the_base_when_asked_for() -> None:
    codec = CommandCodec(load_contract(), SPEC, cmd_vel_stamped=False)
    action = np.linspace(-0.1, 0.1, SPEC.action_size, dtype=np.float32)
    messages = codec.encode(action, Time())
    assert type(messages["cmd_vel"]).__name__ == "Twist"
    assert messages["cmd_vel"].linear.x == action[SPEC.action_slices["base"]][0]
    assert type(messages["servo_node/delta_twist_cmds"]).__name__ == "TwistStamped"


def test_displacements_become_velocities_and_one_opening_moves_both_fingers() -> None:
    codec = CommandCodec(load_contract(), SPEC)
    action = np.zeros(SPEC.action_size, dtype=np.float32)
    action[SPEC.action_slices["arm_translation"]] = (0.02, 0, 0)
    action[SPEC.action_slices["gripper"]] = 1
    messages = codec.encode(action, Time(sec=3))
    servo = messages["servo_node/delta_twist_cmds"]
    assert servo.twist.linear.x == pytest.approx(0.1)  # m/s: 2 cm in 0.2 s
    assert (servo.header.frame_id, servo.header.stamp.sec) == ("base_link", 3)
    gripper = messages["gripper_controller/joint_trajectory"]
    assert list(gripper.joint_names) == ["r_gripper_finger_joint", "l_gripper_finger_joint"]
    assert list(gripper.points[0].positions) == [0.05, 0.05]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_is_sent(value: float) -> None:
    codec = CommandCodec(load_contract(), SPEC)
    for index in np.flatnonzero(~SPEC.binary_mask):
        action = np.zeros(SPEC.action_size, dtype=np.float32)
        action[index] = value
        with pytest.raises(ArithmeticError, match="nothing is sent"):
            codec.encode(action, Time())


def test_joint_states_may_come_in_parts() -> None:
    source = next(vector for vector in load_contract().vectors if vector.name == "joint_positions")
    *arm, finger = [field.path for field in source.fields]
    joints = JointStates.of(source)
    first, second = (
        JointState(name=arm, position=[0.5] * len(arm)),
        JointState(name=[finger], position=[0.05]),
    )
    first.header.stamp, second.header.stamp = Time(sec=1), Time(sec=2)
    joints.add(first)
    with pytest.raises(MissingObservation, match=finger):
        read_vector(joints.merged(), source)
    joints.add(second)
    assert read_vector(joints.merged(), source)[-1] == 1.0
    assert joints.oldest_ns(source) == 1_000_000_000  # of the joints that the source needs


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
