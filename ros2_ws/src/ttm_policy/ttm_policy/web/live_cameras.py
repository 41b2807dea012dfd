"""The newest frame of each camera as a JPEG, made when somebody looks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import simplejpeg
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage

from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec
from ttm_policy.contract.conversions import MESSAGE_TYPES, image_to_frame
from ttm_policy.contract.robot_contract import ImageSource
from ttm_policy.qos import SENSOR
from ttm_policy.recording.tick_values import message_image_size
from ttm_policy.web.robot_side import LiveFrame

QUALITY = 80
JPEG_START = b"\xff\xd8"
MOST_BYTES = 2**23
"""Of a JPEG that is passed on as it is, to every page that is open."""


class LiveCameras:
    """Keeps the newest message of each camera. Frames are made in the thread that asks for them.

    Frames that arrive as JPEGs are passed on as they are.
    """

    def __init__(self, node: Node, sources: Sequence[ImageSource]) -> None:
        self._sources = {source.name: source for source in sources}
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._made: dict[str, LiveFrame] = {}
        self._tried: dict[str, int] = {}
        self._lock = threading.Lock()
        self.problems: dict[str, str] = {}
        """Camera -> why its newest frame cannot be shown."""
        for source in sources:
            self._subscribe(node, source)

    @property
    def names(self) -> list[str]:
        """The names of the cameras."""
        return list(self._sources)

    def frame(self, camera: str) -> LiveFrame | None:
        """Return the newest frame, or None before the first good one."""
        with self._lock:
            number, data = self._newest.get(camera, (0, b""))
            made = self._made.get(camera)
            if number == self._tried.get(camera, 0):
                return made
            self._tried[camera] = number
            try:
                self._made[camera] = LiveFrame(number, _jpeg(data, self._sources[camera]))
                self.problems.pop(camera, None)
            except UserError as error:
                self.problems[camera] = str(error)
            return self._made.get(camera)

    def _subscribe(self, node: Node, source: ImageSource) -> None:
        def receive(data: bytes) -> None:
            self._newest[source.name] = self._newest.get(source.name, (0, b""))[0] + 1, data

        kind = MESSAGE_TYPES[source.type]
        node.create_subscription(kind, source.topic, receive, SENSOR, raw=True)


def _jpeg(data: bytes, source: ImageSource) -> bytes:
    """Return a serialised message's image as a JPEG. Raises `UserError` if it cannot be read."""
    try:
        message: Any = deserialize_message(data, MESSAGE_TYPES[source.type])
    except RuntimeError as error:  # RMWError of rclpy
        raise UserError(f"a frame of '{source.topic}' is damaged ({error})") from error
    height, width = message_image_size(message)
    if isinstance(message, CompressedImage) and bytes(message.data[:2]) == JPEG_START:
        if len(message.data) > MOST_BYTES:
            raise UserError(
                f"a frame of '{source.topic}' has {len(message.data)} bytes, and at most {MOST_BYTES} are "
                "shown; lower the camera's size or its quality"
            )
        return bytes(message.data)
    frame = image_to_frame(message, source, CameraSpec(source.name, height, width))
    return bytes(simplejpeg.encode_jpeg(frame, QUALITY, "RGB"))
