"""Converts camera frames and state vectors to ROS messages and back.

Numbers are transferred exactly. A float32 is stored in a message's float64, scaled if the contract
says so, and rounded to float32 when it is read. The two float64 operations have a relative error
below 2**-51, and a float32 has a precision of 2**-24, so that rounding always returns the bits that
were sent.
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
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, String
from trajectory_msgs.msg import JointTrajectory

from ttm.datasets.frames import MAX_PIXELS, decode_image, image_size, resize_frame
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError, printable
from ttm.policy.spec import CameraSpec
from ttm_policy.contract.robot_contract import (
    ActionSink,
    Field,
    ImageSource,
    RobotContract,
    VectorSource,
)

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
    "std_msgs/String": String,
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
    """Return a message's stamp in nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def ns_to_stamp(nanoseconds: int) -> Time:
    """Return nanoseconds as the stamp of a message."""
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


def check_fields(contract: RobotContract) -> None:
    """Raise `UserError` if a field of the contract is no number in its message type."""
    vectors = [source for source in contract.inputs if isinstance(source, VectorSource)]
    sources: Sequence[VectorSource | ActionSink] = (*vectors, *contract.actions)
    for source in sources:
        message = MESSAGE_TYPES[source.type]()
        for field in source.fields:
            if not isinstance(message, _NAMED_JOINTS) and not _is_number(message, field.path):
                raise UserError(
                    f"{contract.path}: '{source.name}' names '{field.path}', "
                    f"which is no number in {source.type}; "
                    f"see `ros2 interface show {source.type.replace('/', '/msg/')}`"
                )


def image_to_frame(
    message: Image | CompressedImage, source: ImageSource, camera: CameraSpec
) -> Frame:
    """Return a frame (H, W, 3) uint8 RGB of the camera's size.

    Raises `MalformedObservation` for damaged messages, and for frames of another size unless the
    contract allows to resize them.
    """
    if isinstance(message, CompressedImage):
        frame = _decode(message, source, camera)
    else:
        frame = _unpack(message, source, camera)
    return resize_frame(frame, camera.height, camera.width)


def _check_size(size: tuple[int, ...], source: ImageSource, camera: CameraSpec) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise MalformedObservation(
            f"camera '{camera.name}' ({source.topic}) gives {size[1]}x{size[0]} frames, and at most "
            f"{MAX_PIXELS} pixels are taken; lower the driver's resolution"
        )
    if size != (camera.height, camera.width) and not source.resize:
        raise MalformedObservation(
            f"camera '{camera.name}' ({source.topic}) gives {size[1]}x{size[0]} frames; "
            f"the policy was trained with {camera.width}x{camera.height}: "
            "set `resize: true` in the contract, or the camera's size"
        )


def _unpack(message: Image, source: ImageSource, camera: CameraSpec) -> Frame:
    """Return the raw pixels as RGB. Rows may be padded; each takes `step` bytes."""
    depth = _DEPTH.get(message.encoding)
    if depth is None:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) has encoding "
            f"'{printable(message.encoding, 50)}'; "
            f"publish one of {', '.join(_DEPTH)}"
        )
    row_bytes = message.width * depth
    if (
        message.step < row_bytes
        or len(message.data) < message.step * message.height
        or not message.height * row_bytes
    ):
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) claims {message.width}x{message.height} "
            f"{message.encoding} with {message.step} bytes a row, but sent {len(message.data)} bytes; "
            "check the camera driver"
        )
    _check_size((message.height, message.width), source, camera)
    data = np.frombuffer(message.data, dtype=np.uint8, count=message.step * message.height)
    rows = data.reshape(message.height, message.step)[:, :row_bytes]
    pixels = rows.reshape(message.height, message.width, depth)
    return np.ascontiguousarray(pixels[:, :, _CHANNELS[message.encoding]])


def _decode(message: CompressedImage, source: ImageSource, camera: CameraSpec) -> Frame:
    data = bytes(message.data)
    try:
        _check_size(image_size(data), source, camera)
        return decode_image(data)
    except OSError as error:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) sent a compressed image that cannot be used: {error}; "
            "publish JPEG or PNG of 8 bits"
        ) from error


def frame_to_image(frame: Frame, source: ImageSource, stamp: Time) -> Image | CompressedImage:
    """Return a message of the contract's type. Compressed messages hold lossless PNG.

    frame: (H, W, 3) uint8 RGB.
    """
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
    """Return the fields that the contract names, in its order: (K,) float32."""
    return np.array(
        [_get(message, field, source) * field.scale for field in source.fields], dtype=np.float32
    )


def write_vector(message: Any, source: VectorSource, values: Vector) -> None:
    """Write values (K,) to the fields from which `read_vector` reads them."""
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
    names = list(message.name)
    if names.count(field.path) > 1:
        raise MalformedObservation(
            f"joint '{field.path}' is twice in one message of {source.topic}, so that its position is not "
            "known; let its publisher name each joint once"
        )
    try:
        return float(message.position[names.index(field.path)])
    except (ValueError, IndexError):
        raise MissingObservation(
            f"joint '{field.path}' is not in {source.topic}, which has: "
            f"{printable(', '.join(names), 500) or 'none'}"
        ) from None


def _is_number(message: Any, path: str) -> bool:
    try:
        return isinstance(reduce(getattr, path.split("."), message), bool | int | float)
    except AttributeError:
        return False
