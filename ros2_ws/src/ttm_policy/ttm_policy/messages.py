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
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry
from PIL import Image as PillowImage
from rclpy.duration import Duration
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttm.datasets.frames import MAX_PIXELS, decode_image, image_size
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError, printable
from ttm.policy.spec import CameraSpec, PolicySpec, resize_frame
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
    message: Image | CompressedImage, source: ImageSource, camera: CameraSpec | None
) -> Frame:
    """Return a frame (H, W, 3) uint8 RGB of the camera's size, or as it was sent if `camera` is None.

    Raises `MalformedObservation` for damaged messages, and for frames of another size unless they are
    larger, and the contract allows to reduce them.
    """
    what = f"camera '{source.name}' ({source.topic})"
    compressed = isinstance(message, CompressedImage)
    data = bytes(message.data) if compressed else b""
    try:
        height, width = image_size(data) if compressed else _raw_size(message)
        frames = f"{what} gives {width}x{height} frames"
        if height * width > MAX_PIXELS:
            raise MalformedObservation(f"{frames}; at most {MAX_PIXELS} pixels are taken")
        camera = camera or CameraSpec(source.name, height, width)
        wanted, takes = (camera.height, camera.width), camera.takes(height, width)
        if (height, width) != wanted and not (takes and source.resize):
            mend = "set `resize: true` in the contract" if takes else "let it send larger ones"
            raise MalformedObservation(
                f"{frames}; the policy needs {wanted[1]}x{wanted[0]}: {mend}"
            )
        frame = decode_image(data) if compressed else _unpacked(message)
    except OSError as error:
        raise MalformedObservation(f"{what} sent an image that cannot be used: {error}") from error
    return resize_frame(frame, *wanted)


def _raw_size(message: Image) -> tuple[int, int]:
    """Return height and width of raw pixels. Raises `OSError` if the message does not hold as many."""
    if message.encoding not in _DEPTH:
        encoding, known = printable(message.encoding, 50), ", ".join(_DEPTH)
        raise OSError(f"its encoding is '{encoding}'; publish one of {known}")
    height, width, step, given = message.height, message.width, message.step, len(message.data)
    row_bytes = width * _DEPTH[message.encoding]
    if step < row_bytes or given < step * height or not height * row_bytes:
        claim = f"it claims {width}x{height} {message.encoding} with {step} bytes a row"
        raise OSError(f"{claim}, but sent {given} bytes; check the camera driver")
    return height, width


def _unpacked(message: Image) -> Frame:
    """Return raw pixels as RGB. Rows may be padded; each takes `step` bytes."""
    height, width, depth = message.height, message.width, _DEPTH[message.encoding]
    data = np.frombuffer(message.data, dtype=np.uint8, count=message.step * height)
    pixels = data.reshape(height, message.step)[:, : width * depth].reshape(height, width, depth)
    return np.ascontiguousarray(pixels[:, :, _CHANNELS[message.encoding]])


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
    """Set the number at a dotted path, or append it to a message of joints under the joint's name."""
    if isinstance(message, JointState):
        message.name.append(path)
        message.position.append(value)
    elif isinstance(message, JointTrajectory):
        message.joint_names.append(path)
        message.points[0].positions.append(value)
    else:
        *parents, last = path.split(".")
        parent = reduce(getattr, parents, message)
        setattr(parent, last, type(getattr(parent, last))(value))


def _get(message: Any, field: Field, source: VectorSource) -> float:
    if not isinstance(message, JointState):
        return float(reduce(getattr, field.path.split("."), message))
    names = list(message.name)
    if names.count(field.path) > 1:
        raise MalformedObservation(f"joint '{field.path}' is twice in a message of {source.topic}")
    try:
        return float(message.position[names.index(field.path)])
    except (ValueError, IndexError):
        known = printable(", ".join(names), 500) or "none"
        missing = f"joint '{field.path}' is not in {source.topic}, which has: {known}"
        raise MissingObservation(missing) from None


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
            sent = sink if cmd_vel_stamped else _unstamped(sink)
            self.sinks.setdefault(sink.topic, []).append(sent)
        self.motion_topics = [t for t, sinks in self.sinks.items() if sinks[0].type in MOTION_TYPES]

    def types(self) -> dict[str, Any]:
        """Return the message class of each topic."""
        return {topic: MESSAGE_TYPES[sinks[0].type] for topic, sinks in self.sinks.items()}

    def encode(self, values: Vector, stamp: Time) -> dict[str, Any]:
        """Return the message of each topic. values: (A,) in the spec's units."""
        return {topic: self._message(sinks, values, stamp) for topic, sinks in self.sinks.items()}

    def stop(self, stamp: Time) -> dict[str, Any]:
        """Return zero commands for all topics that move the robot; the gripper keeps what it holds."""
        zero = np.zeros(self.spec.action_size, dtype=np.float32)
        return {t: self._message(self.sinks[t], zero, stamp) for t in self.motion_topics}

    def decode(self, messages: Mapping[str, Any], otherwise: Vector | None = None) -> Vector:
        """Return the action (A,) that `encode` was given, bit for bit.

        otherwise: (A,), the values of topics without a message; zeros by default. Raises `UserError` for a
        message that lacks a joint, or holds a value that is not finite.
        """
        values = np.zeros(self.spec.action_size, np.float32)
        if otherwise is not None:
            values[:] = otherwise
        for topic, message in messages.items():
            for sink in self.sinks[topic]:
                values[self.spec.action_slices[sink.name]] = self._read(message, sink, topic)
        return values

    def _message(self, sinks: list[ActionSink], values: Vector, stamp: Time) -> Any:
        message = MESSAGE_TYPES[sinks[0].type]()
        if hasattr(message, "header"):
            message.header.stamp, message.header.frame_id = stamp, self.contract.base_frame
        if isinstance(message, JointTrajectory):
            reach = Duration(nanoseconds=round(self.spec.control_dt_s * 1e9)).to_msg()
            message.points.append(JointTrajectoryPoint(time_from_start=reach))
        for sink in sinks:
            numbers = self._scaled(sink, values[self.spec.action_slices[sink.name]])
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
            raise UserError(f"a command of '{topic}' has {numbers} for '{sink.name}': not finite")
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
            known = printable(", ".join(names), 200) or "none"
            missing = f"a command of '{topic}' has no position of joint '{path}', but of: {known}"
            raise UserError(f"{missing}; end the node that sends it") from None
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
