"""Converts observations and actions to ROS messages and back, by a contract.

Numbers are transferred exactly: a float32 is stored in a message's float64, scaled if the contract says so,
and rounded to float32 when it is read. The two float64 operations have a relative error below 2**-51, and a
float32 a precision of 2**-24.
"""

from __future__ import annotations

import io
import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry
from PIL import Image as PillowImage
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttm.datasets.frames import MAX_PIXELS, decode_image, image_size, resize_frame
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError, printable
from ttm.policy.spec import CameraSpec, PolicySpec
from ttm_policy.contract import (
    MOTION_TYPES,
    ActionSink,
    Field,
    ImageSource,
    RobotContract,
    VectorSource,
)

Frame = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Source = ImageSource | VectorSource
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
_RGB, _BGR = [0, 1, 2], [2, 1, 0]
_CHANNELS = {"rgb8": _RGB, "bgr8": _BGR, "rgba8": _RGB, "bgra8": _BGR, "mono8": [0, 0, 0]}
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
                    f"{contract.path}: '{source.name}' names '{field.path}', which is no number in "
                    f"{source.type}; see `ros2 interface show {source.type.replace('/', '/msg/')}`"
                )


def image_to_frame(
    message: Image | CompressedImage, source: ImageSource, camera: CameraSpec
) -> Frame:
    """Return a frame (H, W, 3) uint8 RGB of the camera's size.

    Raises `MalformedObservation` for damaged messages, and for frames of another size unless the
    contract allows to resize them.
    """
    read = _decode if isinstance(message, CompressedImage) else _unpack
    return resize_frame(read(message, source, camera), camera.height, camera.width)


def _check_size(size: tuple[int, ...], source: ImageSource, camera: CameraSpec) -> None:
    frames = f"camera '{camera.name}' ({source.topic}) gives {size[1]}x{size[0]} frames"
    if size[0] * size[1] > MAX_PIXELS:
        raise MalformedObservation(
            f"{frames}, and at most {MAX_PIXELS} pixels are taken; lower the driver's resolution"
        )
    if size != (camera.height, camera.width) and not source.resize:
        raise MalformedObservation(
            f"{frames}; the policy needs {camera.width}x{camera.height}: set `resize: true` in the contract"
        )


def _unpack(message: Image, source: ImageSource, camera: CameraSpec) -> Frame:
    """Return the raw pixels as RGB. Rows may be padded; each takes `step` bytes."""
    depth = _DEPTH.get(message.encoding)
    if depth is None:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) has encoding "
            f"'{printable(message.encoding, 50)}'; publish one of {', '.join(_DEPTH)}"
        )
    row_bytes = message.width * depth
    whole = message.step * message.height <= len(message.data) and message.step >= row_bytes
    if not whole or not message.height * row_bytes:
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
            f"camera '{source.name}' ({source.topic}) sent a compressed image that cannot be used: {error}"
        ) from error


def frame_to_image(frame: Frame, source: ImageSource, stamp: Time) -> Image | CompressedImage:
    """Return a message of a frame (H, W, 3) uint8 RGB. Compressed messages hold lossless PNG."""
    message: Image | CompressedImage
    if source.type == "sensor_msgs/CompressedImage":
        buffer = io.BytesIO()
        PillowImage.fromarray(frame).save(buffer, format="PNG", compress_level=1)
        message = CompressedImage(format="png", data=array("B", buffer.getvalue()))
    else:
        height, width, _ = frame.shape
        message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
        message.data = array("B", frame.tobytes())
    message.header.stamp, message.header.frame_id = stamp, source.name
    return message


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
            f"joint '{field.path}' is twice in one message of {source.topic}; name each joint once"
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


def _name_frame(message: Any, source: Source) -> None:
    message.header.frame_id = source.frame_id or message.header.frame_id


def input_types(contract: RobotContract) -> dict[str, Any]:
    """Return the message class of each input topic."""
    return {source.topic: MESSAGE_TYPES[source.type] for source in contract.inputs}


def observation_messages(
    contract: RobotContract,
    values: Mapping[str, npt.NDArray[Any]],
    stamp: Time,
    *,
    complete: Callable[[Any, Source], None] = _name_frame,
) -> dict[str, Any]:
    """Return the message of each topic, all with one stamp. Inputs of one topic share its message.

    values: for each input, (H, W, 3) uint8 or (K,) float32. complete: fills in what the contract says
    nothing about; by default the frame that the contract asks for.
    """
    messages: dict[str, Any] = {}
    for source in contract.inputs:
        if isinstance(source, ImageSource):
            message = frame_to_image(np.asarray(values[source.name]), source, stamp)
            complete(message, source)
        else:
            message = messages.get(source.topic) or MESSAGE_TYPES[source.type]()
            complete(message, source)
            message.header.stamp = stamp
            write_vector(message, source, values[source.name])
        messages[source.topic] = message
    return messages


def rotation_between(before: npt.ArrayLike, after: npt.ArrayLike) -> Numbers:
    """Return the rotation vector (3,) in rad that turns one orientation to the other the shorter way.

    Both are unit quaternions (4,), x y z w. The vector is in the fixed frame in which they are.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    back, scalar = -first[:3], first[3]
    turned = second[3] * back + scalar * second[:3] + np.cross(second[:3], back)
    cosine = second[3] * scalar - second[:3] @ back
    turned = np.copysign(1.0, cosine) * turned
    sine = float(np.linalg.norm(turned))
    return np.zeros(3) if sine == 0.0 else turned / sine * 2 * np.arctan2(sine, abs(cosine))


class CommandCodec:
    """Converts actions (A,) float32 to one message for each topic, and back.

    Parts of the action that share a topic share one message, such as a twist for MoveIt Servo.
    """

    def __init__(self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True):
        self.contract, self.spec = contract, spec
        self.sinks: dict[str, list[ActionSink]] = {}
        for sink in contract.actions:
            self.sinks.setdefault(sink.topic, []).append(
                sink if cmd_vel_stamped else _unstamped(sink)
            )

        self.motion_topics = {sink.topic for sink in contract.actions if sink.type in MOTION_TYPES}

    def types(self) -> dict[str, Any]:
        """Return the message class of each topic."""
        return {topic: MESSAGE_TYPES[sinks[0].type] for topic, sinks in self.sinks.items()}

    def encode(self, values: Vector, stamp: Time) -> dict[str, Any]:
        """Return the message of each topic. values: (A,) in the spec's units."""
        return {topic: self._message(sinks, values, stamp) for topic, sinks in self.sinks.items()}

    def stop(self, stamp: Time) -> dict[str, Any]:
        """Return zero commands for all topics that move the robot; the gripper keeps what it holds."""
        zero = np.zeros(self.spec.action_size, dtype=np.float32)
        return {
            topic: self._message(sinks, zero, stamp)
            for topic, sinks in self.sinks.items()
            if topic in self.motion_topics
        }

    def decode(self, messages: Mapping[str, Any], otherwise: Vector | None = None) -> Vector:
        """Return the action (A,) that `encode` was given, bit for bit.

        otherwise: (A,), the values of topics without a message; zeros by default. Raises `UserError` for a
        message that lacks a joint, or holds a value that is not finite.
        """
        values = (
            np.zeros(self.spec.action_size, np.float32) if otherwise is None else otherwise.copy()
        )
        for topic, message in messages.items():
            for sink in self.sinks[topic]:
                values[self.spec.action_slices[sink.name]] = self._read(message, sink, topic)
        return values

    def _message(self, sinks: list[ActionSink], values: Vector, stamp: Time) -> Any:
        message = MESSAGE_TYPES[sinks[0].type]()
        if hasattr(message, "header"):
            message.header.stamp, message.header.frame_id = stamp, self.contract.base_frame
        for sink in sinks:
            numbers = self._scaled(sink, values[self.spec.action_slices[sink.name]])
            if isinstance(message, JointTrajectory):
                self._add_joints(message, sink, numbers)
                continue
            for field, number in zip(sink.fields, numbers, strict=True):
                write_field(message, field.path, number)
        return message

    def _scaled(self, sink: ActionSink, part: Vector) -> list[float]:
        """Return a float64 for each field. NaN and infinity are never sent: they raise `ArithmeticError`."""
        period_s = self.spec.control_dt_s if sink.per_second else 1.0
        spread = np.broadcast_to(part, (len(sink.fields),))
        numbers = [
            float(value) * field.scale / period_s
            for value, field in zip(spread, sink.fields, strict=True)
        ]
        if not all(map(math.isfinite, numbers)):
            raise ArithmeticError(f"'{sink.name}' would be sent as {numbers}; nothing is sent")
        return numbers

    def _add_joints(
        self, message: JointTrajectory, sink: ActionSink, positions: list[float]
    ) -> None:
        if not message.points:
            seconds, nanoseconds = divmod(round(self.spec.control_dt_s * 1e9), 1_000_000_000)
            reach = Duration(sec=seconds, nanosec=nanoseconds)
            message.points.append(JointTrajectoryPoint(time_from_start=reach))
        message.joint_names.extend(field.path for field in sink.fields)
        message.points[0].positions.extend(positions)

    def _read(self, message: Any, sink: ActionSink, topic: str) -> Vector:
        period_s = self.spec.control_dt_s if sink.per_second else 1.0
        where = self.spec.action_slices[sink.name]
        numbers = [
            _number(message, field.path, topic) / field.scale * period_s
            for field in sink.fields[: where.stop - where.start]
        ]
        with np.errstate(over="ignore"):  # it is infinite then
            part = np.array(numbers, dtype=np.float32)
        if not np.isfinite(part).all():
            raise UserError(
                f"a command of '{topic}' has {numbers} for '{sink.name}', which are not all finite"
            )
        return part


def _unstamped(sink: ActionSink) -> ActionSink:
    """Return the sink for base controllers that take a plain Twist, unlike MoveIt Servo."""
    if sink.per_second or sink.type != "geometry_msgs/TwistStamped":
        return sink
    fields = tuple(replace(field, path=field.path.removeprefix("twist.")) for field in sink.fields)
    return replace(sink, type="geometry_msgs/Twist", fields=fields)


def _number(message: Any, path: str, topic: str) -> float:
    if isinstance(message, JointTrajectory):
        names = list(message.joint_names)
        try:
            return float(message.points[0].positions[names.index(path)])
        except (ValueError, IndexError):
            raise UserError(
                f"a command of '{topic}' has no position of joint '{path}', but its joints are "
                f"{printable(', '.join(names), 200) or 'none'}; end the node that sends it"
            ) from None
    return float(reduce(getattr, path.split("."), message))


@dataclass(frozen=True)
class ResetReply:
    """The answer of the services `~/reset_memory` and `~/erase_memory`, as JSON in its message.

    A simulator learns from it whether its instruction had arrived. `tick` counts the ticks since the reset.
    """

    instruction: str
    tick: int = 0

    def to_json(self) -> str:
        """Return the text of the service's answer."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_reset_reply(response: Trigger.Response) -> ResetReply | None:
    """Return the reply, or None if the service refused the reset or answered something else."""
    if not response.success:
        return None
    try:
        data = json.loads(response.message)
        return ResetReply(instruction=str(data["instruction"]), tick=int(data["tick"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
