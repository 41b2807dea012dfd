"""The frames that all pages share: each is made once, also one that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ttm.policy.errors import UserError
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.web import live_cameras
from ttm_policy.web.live_cameras import LiveCameras


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
