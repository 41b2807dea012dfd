"""What comes over topics: the observations of a policy, the commands of a person, and texts.

`Inputs` keeps the newest message of every input of a contract, and makes the observation of a tick from them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from ttm.policy.errors import (
    MalformedObservation,
    MissingObservation,
    StaleObservation,
    UserError,
    printable,
    require_instruction,
)
from ttm.policy.snapshot import require_fresh
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    EXECUTED_ACTION,
    JOINT_STATE,
    ImageSource,
    RobotContract,
    VectorSource,
)
from ttm_policy.guards import Arrivals, require_contrast, require_frame_id, require_plausible
from ttm_policy.messages import MESSAGE_TYPES, image_to_frame, read_vector, stamp_to_ns
from ttm_policy.qos import LATCHED, MERGED, SENSOR

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StampedObservation:
    """An observation with its times of capture in nanoseconds."""

    values: Mapping[str, npt.NDArray[Any]]
    stamp_ns: int
    """The stamp of the oldest camera frame; without cameras, of the oldest input."""
    oldest_ns: int
    """The stamp of the oldest of all inputs."""
    executed: Vector | None = None
    """What the robot reports that it did at the last tick, (A,); None if it reports nothing."""
    newest_ns: int | None = None
    """The stamp of the newest input; None if it is that of the oldest."""
    frames: Mapping[str, int] = field(default_factory=dict)
    """The stamps of the cameras whose frames may enter the memory only once."""
    see: Callable[[], Mapping[str, npt.NDArray[Any]]] = field(default=dict)
    """Converts and returns the frames of the cameras that `values` lacks, which takes long. Raises
    `ObservationError` for a frame that must not enter the memory."""


MOST_OTHERS, LONGEST_NAME = 50, 100
"""The number of joints that nobody asks for, and the length of their names, that are kept for messages."""


class JointStates:
    """Merges messages with some of the joints each; of those not `wanted`, a few for messages."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = frozenset(wanted)
        self._positions: dict[str, float] = {}
        self._stamps: dict[str, int] = {}
        self._twice: set[str] = set()
        self._others = 0

    @classmethod
    def of(cls, *sources: ImageSource | VectorSource) -> JointStates:
        """Return that of the joints that sources of a contract name."""
        fields = (field for s in sources if isinstance(s, VectorSource) for field in s.fields)
        return cls([field.path for field in fields])

    def add(self, message: JointState) -> None:
        """Take over the positions of the joints in `message`."""
        stamp_ns = stamp_to_ns(message.header.stamp)
        seen: set[str] = set()
        for name, position in zip(message.name, message.position, strict=False):
            if name in self._wanted:
                (self._twice.add if name in seen else self._twice.discard)(name)
                seen.add(name)
                self._positions[name], self._stamps[name] = position, stamp_ns
            elif name in self._positions:
                self._positions[name] = position
            elif self._others < MOST_OTHERS and len(name) <= LONGEST_NAME:
                self._positions[name] = position
                self._others += 1

    def oldest_ns(self, source: VectorSource) -> int:
        """Return the oldest stamp of the joints in the source, or 0 if none was seen."""
        stamps = (self._stamps[field.path] for field in source.fields if field.path in self._stamps)
        return min(stamps, default=0)

    def merged(self) -> JointState:
        """Return the joints seen so far; one is there twice if its newest message had it twice."""
        names = [*self._positions, *self._twice]
        return JointState(name=names, position=[self._positions[name] for name in names])


class Inputs:
    """Subscribes to all observation topics of the contract. `on_message` is called after each message.

    Frames are converted only when a tick needs them, by the call of `StampedObservation.see`.
    """

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        spec: PolicySpec,
        *,
        lockstep: bool,
        on_message: Callable[[], None] = lambda: None,
    ):
        self._node, self._spec, self._on_message = node, spec, on_message
        self.lockstep = lockstep
        self._max_skew_s = contract.max_skew_s
        self._arrivals = Arrivals()
        self._sources = {source.name: source for source in contract.inputs}
        self._labels = {
            name: f"{name} ({node.resolve_topic_name(source.topic)})"
            for name, source in self._sources.items()
        }
        self._newest: dict[str, Any] = {}
        self.refused_ns: int | None = None
        """The stamp of an observation in lockstep that turned out to be bad, and is asked about no more."""
        self._joints = self._no_joints()
        for source in self._sources.values():
            qos = MERGED if source.name in self._joints else SENSOR
            receive, kind = partial(self._receive, source), MESSAGE_TYPES[source.type]
            node.create_subscription(kind, source.topic, receive, LATCHED if lockstep else qos)

    def _no_joints(self) -> dict[str, JointStates]:
        joints = [source for source in self._sources.values() if source.type == JOINT_STATE]
        return {source.name: JointStates.of(source) for source in joints}

    def _receive(self, source: ImageSource | VectorSource, message: Any) -> None:
        self._newest[source.name] = message
        if source.name in self._joints:
            self._joints[source.name].add(message)
        self._arrivals.add(self._labels[source.name], self._stamp_ns(source), time.monotonic())
        self._on_message()

    def complete_stamp_ns(self) -> int | None:
        """Return the stamp that all newest messages share; None if they differ, or it was refused."""
        stamps = {stamp_to_ns(message.header.stamp) for message in self._newest.values()}
        complete = len(self._newest) == len(self._sources) and len(stamps) == 1
        return stamps.pop() if complete and stamps != {self.refused_ns} else None

    def require_trusted(self, now_ns: int, wall_s: float, max_age_s: float) -> None:
        """Raise `ObservationError` if an input is missing, silent or old, or has too many publishers.

        now_ns: the time on the clock that stamps the messages. wall_s: that of a steady clock.
        """
        self._require_received()
        for source in self._sources.values():
            self._require_publishers(source)
        self._arrivals.require_alive(wall_s, max_age_s)
        for source in self._sources.values():
            try:
                require_fresh((now_ns - self._stamp_ns(source)) * 1e-9, max_age_s)
            except StaleObservation as error:
                raise StaleObservation(f"{self._labels[source.name]}: {error}") from error

    def ages_s(self, now_ns: int) -> dict[str, float]:
        """Return the age in seconds of each input that was received, as `name (topic)` -> age."""
        return {
            self._labels[name]: (now_ns - self._stamp_ns(source)) * 1e-9
            for name, source in self._sources.items()
            if name in self._newest
        }

    def frames(self) -> dict[str, int]:
        """Return the stamp (ns) of the newest frame of each camera that must not repeat one; -1 for none."""
        if self.lockstep:  # there, every observation has a new stamp
            return {}
        return {
            source.name: self._stamp_ns(source) if source.name in self._newest else -1
            for source in self._sources.values()
            if isinstance(source, ImageSource) and not source.repeat
        }

    def observation(self) -> StampedObservation:
        """Return the newest value of each input, and how to convert the newest frames.

        Raises `ObservationError` if one is missing or implausible, or if they were captured too far apart.
        """
        self._require_received()
        stamps = {name: self._stamp_ns(source) for name, source in self._sources.items()}
        self._require_together(stamps)
        values, images = {}, []
        for name, source in self._sources.items():
            require_frame_id(self._newest[name], source)
            if isinstance(source, VectorSource):
                values[name] = self._read(source)
            else:
                images.append((self._newest[name], source))
        cameras = [stamps[camera.name] for camera in self._spec.cameras]
        return StampedObservation(
            executed=values.pop(EXECUTED_ACTION, None),
            values=values,
            stamp_ns=min(cameras or stamps.values()),
            oldest_ns=min(stamps.values()),
            newest_ns=max(stamps.values()),
            frames=self.frames(),
            see=partial(_to_frames, images, self._spec),
        )

    def waits_for(self) -> str:
        """Return which inputs have sent nothing yet, and which of them nobody publishes; or an empty text."""
        missing = {self._labels[n]: s for n, s in self._sources.items() if n not in self._newest}
        if not missing:
            return ""
        topics = dict.fromkeys(source.topic for source in missing.values())
        nobody = [t for t in topics if not self._node.count_publishers(t)]
        why = "nobody publishes " + ", ".join(map(self._node.resolve_topic_name, nobody))
        if len(nobody) == len(topics):
            why = "nobody publishes " + ("them" if len(missing) > 1 else "it")
        elif not nobody:
            why = "it is published: check its type, rate and QoS by ttm contract check"
        return f"nothing received yet from: {', '.join(missing)}; {why}"

    def _require_received(self) -> None:
        if waits_for := self.waits_for():
            raise MissingObservation(waits_for)

    def _require_publishers(self, source: ImageSource | VectorSource) -> None:
        """Raise `MalformedObservation` if more publishers send an input than the contract accepts."""
        if self._node.count_publishers(source.topic) <= source.publishers:
            return
        topic = self._node.resolve_topic_name(source.topic)
        infos = self._node.get_publishers_info_by_topic(topic)
        names = ", ".join(sorted(info.node_name for info in infos))
        raise MalformedObservation(
            f"{self._labels[source.name]} has {len(infos)} publishers ({names}); the contract accepts "
            f"{source.publishers}: end the others, or set `publishers` in the contract"
        )

    def _require_together(self, stamps: Mapping[str, int]) -> None:
        first, last = min(stamps, key=stamps.__getitem__), max(stamps, key=stamps.__getitem__)
        skew_s = (stamps[last] - stamps[first]) * 1e-9
        if skew_s > self._max_skew_s:
            raise StaleObservation(
                f"{self._labels[first]} is {skew_s:.3f} s older than "
                f"{self._labels[last]}; max_skew_s of the contract is {self._max_skew_s:g}"
            )

    def _stamp_ns(self, source: ImageSource | VectorSource) -> int:
        """Return the stamp of the newest message; of merged joints, the oldest one."""
        if isinstance(source, VectorSource) and source.name in self._joints:
            return self._joints[source.name].oldest_ns(source)
        return stamp_to_ns(self._newest[source.name].header.stamp)

    def _read(self, source: VectorSource) -> npt.NDArray[Any]:
        message = self._newest[source.name]
        if source.name in self._joints:
            message = self._joints[source.name].merged()
        values = read_vector(message, source)
        require_plausible(values, source)
        return values

    def forget(self) -> None:
        """Drop everything received, so that the next tick waits for new messages."""
        self._newest.clear()
        self.refused_ns = None
        self._arrivals.clear()
        self._joints = self._no_joints()


def _to_frames(
    images: Sequence[tuple[Image | CompressedImage, ImageSource]], spec: PolicySpec
) -> dict[str, npt.NDArray[Any]]:
    """Return the frame (H, W, 3) of each camera. Raises `ObservationError` for a damaged or dull one."""
    frames = {}
    for message, source in images:
        frames[source.name] = image_to_frame(message, source, spec.camera(source.name))
        require_contrast(frames[source.name], source)
    return frames


PERSON_TOPIC = "person_command"
"""Where a person says what the robot is to do in the policy's place: a `sensor_msgs/JointState` with the
values of the action under names such as `base.0`, in the units of the spec. NaN leaves a value as it is in
force. `header.frame_id` names the person."""
DRIVER_TOPIC = "driver"
"""The topic on which the policy node says who drives, as text."""
POLICY, PERSON = "policy", "person"
PERIOD_S = 0.02
"""The time between two commands of a person, in wall time."""
TIMEOUT_S = 0.3
"""The longest silence of a person who drives, after which the robot stands still."""


def to_message(spec: PolicySpec, wish: Vector, stamp: Time, person: str) -> JointState:
    """Return the message of a wish (A,) for `PERSON_TOPIC`. person: who drives."""
    message = JointState(name=_names(spec), position=[float(value) for value in wish])
    message.header.stamp, message.header.frame_id = stamp, person
    return message


def from_message(spec: PolicySpec, message: JointState) -> Vector:
    """Return the wish (A,) of a message. Raises `MalformedObservation` if it is for another action."""
    names, values = _names(spec), np.array(message.position, np.float32)
    if list(message.name) != names or len(values) != len(names) or np.isinf(values).any():
        given = printable(", ".join(message.name), 200) or "no names"
        wanted = ", ".join(names)
        raise MalformedObservation(f"a person's command has {given}, but the action {wanted}")
    return values


def _names(spec: PolicySpec) -> list[str]:
    return [f"{part.name}.{place}" for part in spec.actions for place in range(part.size)]


MOST_CHARACTERS = 2**20
"""The longest JSON that is read."""
MOST_PARTS = 1000
"""The longest list, and the longest text, in it."""
LARGEST = 2**63
WARN_EVERY_S = 10.0


def read_json(
    node: Node, topic: str, message: String, fields: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return these fields of a JSON object; None, with a warning, if it is none or lacks one.

    Anybody may publish it: texts become printable, lists hold texts alone, and objects whole numbers.
    fields: name -> type, or what it is if it is left out.
    """
    try:
        data = _load_json(message.data)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        return {name: _field(data, name, kind) for name, kind in fields.items()}
    except (ValueError, RecursionError) as error:
        _warn(node, topic, error)
        return None


def read_json_texts(node: Node, topic: str, message: String) -> list[str] | None:
    """Return the texts of a JSON list; None, with a warning, if it is none."""
    try:
        return _texts(_load_json(message.data))
    except (ValueError, RecursionError) as error:
        _warn(node, topic, error)
        return None


def read_instruction(node: Node, message: String) -> str:
    """Return the instruction of a message; an empty text, with a warning, if it is none."""
    try:
        return require_instruction(message.data)
    except UserError as error:
        _warn(node, "instruction", error, "")
        return ""


def _load_json(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters")
    return json.loads(text)


def _field(data: Mapping[str, Any], name: str, kind: Any) -> Any:
    value: Any = data.get(name)
    if value is None:
        if isinstance(kind, type):
            raise ValueError(f"'{name}' is missing")
        return kind
    wanted = kind if isinstance(kind, type) else type(kind)
    if wanted is float and type(value) is int:
        value = float(value) if abs(value) < LARGEST else math.inf
    if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"'{name}' is no {wanted.__name__}")
    numbers: list[Any] = [value] if wanted is int else []
    if isinstance(value, dict):
        numbers = list(value.values())
    if any(type(number) is not int or abs(number) >= LARGEST for number in numbers):
        raise ValueError("it holds no whole number below 2**63 where one belongs")
    if isinstance(value, str):
        return _text(value)
    return _texts(value) if wanted is list else value


def _text(value: str) -> str:
    short = value.isprintable() and len(value) <= MOST_PARTS
    return value if short else printable(value, MOST_PARTS)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("it holds no list of texts")
    if len(value) > MOST_PARTS:
        raise ValueError(f"it holds a list of {len(value)} texts")
    return [_text(text) for text in value]


def _warn(
    node: Node, topic: str, error: Exception, remedy: str = "; end the node that publishes it"
) -> None:
    node.get_logger().warning(
        f"a message of '{topic}' is not used: {printable(error, 250)}{remedy}",
        throttle_duration_sec=WARN_EVERY_S,
    )
