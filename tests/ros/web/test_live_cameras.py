"""The frames that all pages share: each is made once, also one that cannot be."""

from __future__ import annotations

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
