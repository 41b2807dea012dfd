"""Camera frames and state vectors to ROS messages and back.

Numbers cross exactly: a float32 goes into a message's float64, scaled if the contract says so, and comes
back by rounding to float32. Two float64 operations err by less than 2**-51 of the value, a float32 has
2**-24, so the rounding always returns the very bits that were sent.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry
from PIL import Image as PillowImage
from PIL import UnidentifiedImageError
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool
from trajectory_msgs.msg import JointTrajectory

from ttm.datasets.frames import resize_frame
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError
from ttm.policy.spec import CameraSpec
from ttm_policy.contract import ActionSink, Field, ImageSource, RobotContract, VectorSource

Frame = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.float32]

MESSAGE_TYPES: Mapping[str, Any] = {
    "sensor_msgs/Image": Image,
    "sensor_msgs/CompressedImage": CompressedImage,
    "sensor_msgs/JointState": JointState,
    "geometry_msgs/PoseStamped": PoseStamped,
    "geometry_msgs/TwistStamped": TwistStamped,
    "geometry_msgs/Twist": Twist,
    "nav_msgs/Odometry": Odometry,
    "trajectory_msgs/JointTrajectory": JointTrajectory,
    "std_msgs/Bool": Bool,
}
_NAMED_JOINTS = (JointState, JointTrajectory)
_CHANNELS = {
    "rgb8": [0, 1, 2],
    "bgr8": [2, 1, 0],
    "rgba8": [0, 1, 2],
    "bgra8": [2, 1, 0],
    "mono8": [0, 0, 0],
}
_DEPTH = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}


def stamp_to_ns(stamp: Time) -> int:
    """A message's stamp as nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def ns_to_stamp(nanoseconds: int) -> Time:
    """The inverse of `stamp_to_ns`."""
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


def check_fields(contract: RobotContract) -> None:
    """Raise `UserError` if a field path of the contract is not in its message type."""
    sources: Sequence[VectorSource | ActionSink] = (*contract.vectors, *contract.actions)
    for source in sources:
        message = MESSAGE_TYPES[source.type]()
        for field in source.fields:
            if not isinstance(message, _NAMED_JOINTS) and not _is_number(message, field.path):
                raise UserError(
                    f"{contract.path}: '{source.name}' names '{field.path}', which is no number in {source.type}; "
                    f"see `ros2 interface show {source.type.replace('/', '/msg/')}`"
                )


def image_to_frame(
    message: Image | CompressedImage, source: ImageSource, camera: CameraSpec
) -> Frame:
    """-> (H, W, 3) uint8 RGB of the camera's size; a frame of another size is resized only if the contract allows."""
    frame = (
        _decode(message, source)
        if isinstance(message, CompressedImage)
        else _unpack(message, source)
    )
    size = (camera.height, camera.width)
    if frame.shape[:2] != size and not source.resize:
        raise MalformedObservation(
            f"camera '{camera.name}' ({source.topic}) gives {frame.shape[1]}x{frame.shape[0]} frames; the policy was "
            f"trained with {camera.width}x{camera.height}: set `resize: true` in the contract, or the camera's size"
        )
    return resize_frame(frame, *size)


def _unpack(message: Image, source: ImageSource) -> Frame:
    """Raw pixels; rows may be padded (`step` bytes each)."""
    depth = _DEPTH.get(message.encoding)
    if depth is None:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) has encoding '{message.encoding}'; "
            f"publish one of {', '.join(_DEPTH)}"
        )
    row_bytes = message.width * depth
    if (
        message.step < row_bytes
        or len(message.data) < message.step * message.height
        or not message.height * row_bytes
    ):
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) claims {message.width}x{message.height} {message.encoding} with "
            f"{message.step} bytes a row, but sent {len(message.data)} bytes; mend the camera driver"
        )
    data = np.frombuffer(message.data, dtype=np.uint8, count=message.step * message.height)
    rows = data.reshape(message.height, message.step)[:, :row_bytes]
    pixels = rows.reshape(message.height, message.width, depth)
    return np.ascontiguousarray(pixels[:, :, _CHANNELS[message.encoding]])


def _decode(message: CompressedImage, source: ImageSource) -> Frame:
    try:
        with PillowImage.open(io.BytesIO(bytes(message.data))) as image:
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) sent a damaged '{message.format}' image ({error})"
        ) from error


def frame_to_image(frame: Frame, source: ImageSource, stamp: Time) -> Image | CompressedImage:
    """frame: (H, W, 3) uint8 RGB -> a message of the contract's type; compressed ones are PNG, so nothing is lost."""
    if source.type == "sensor_msgs/CompressedImage":
        buffer = io.BytesIO()
        PillowImage.fromarray(frame).save(buffer, format="PNG", compress_level=1)
        compressed = CompressedImage(format="png", data=array("B", buffer.getvalue()))
        compressed.header.stamp, compressed.header.frame_id = stamp, source.name
        return compressed
    height, width, _ = frame.shape
    image = Image(
        height=height,
        width=width,
        encoding="rgb8",
        step=3 * width,
        data=array("B", frame.tobytes()),
    )
    image.header.stamp, image.header.frame_id = stamp, source.name
    return image


def read_vector(message: Any, source: VectorSource) -> Vector:
    """-> (K,) float32: the fields the contract names, in its order."""
    return np.array(
        [_get(message, field, source) * field.scale for field in source.fields], dtype=np.float32
    )


def write_vector(message: Any, source: VectorSource, values: Vector) -> None:
    """Put values (K,) where `read_vector` finds them; a `JointState` gets its names too."""
    for field, value in zip(source.fields, values, strict=True):
        write_field(message, field.path, float(value) / field.scale)


def write_field(message: Any, path: str, value: float) -> None:
    """Set the number at a dotted path, or append it to a `JointState` under the joint's name."""
    if isinstance(message, JointState):
        message.name.append(path)
        message.position.append(value)
        return
    *parents, last = path.split(".")
    parent = reduce(getattr, parents, message)
    setattr(parent, last, type(getattr(parent, last))(value))


def _get(message: Any, field: Field, source: VectorSource) -> float:
    if not isinstance(message, JointState):
        return float(reduce(getattr, field.path.split("."), message))
    try:
        return float(message.position[list(message.name).index(field.path)])
    except (ValueError, IndexError):
        raise MissingObservation(
            f"joint '{field.path}' is not in {source.topic}, which has: {', '.join(message.name) or 'none'}"
        ) from None


def _is_number(message: Any, path: str) -> bool:
    try:
        return isinstance(reduce(getattr, path.split("."), message), bool | int | float)
    except AttributeError:
        return False
