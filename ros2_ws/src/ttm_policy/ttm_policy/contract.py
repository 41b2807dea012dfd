"""The contract between a robot's topics and a policy: one YAML file, read by every node.

It says which topic, message type and fields feed each observation of the `PolicySpec`, and where each
part of the action goes. `fetch_kitchen.yaml` beside this file is the commented example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec

IMAGE_TYPES = ("sensor_msgs/Image", "sensor_msgs/CompressedImage")
VECTOR_TYPES = (
    "sensor_msgs/JointState",
    "geometry_msgs/PoseStamped",
    "geometry_msgs/TwistStamped",
    "nav_msgs/Odometry",
)
COMMAND_TYPES = (
    "geometry_msgs/TwistStamped",
    "geometry_msgs/Twist",
    "trajectory_msgs/JointTrajectory",
    "std_msgs/Bool",
)
MOTION_TYPES = ("geometry_msgs/TwistStamped", "geometry_msgs/Twist")
"""What moves the robot for as long as it is commanded: limited always, and zeroed to stop."""
LIMITS = ("max_forward_m_s", "max_yaw_rad_s", "max_translation_m", "max_rotation_rad")


@dataclass(frozen=True)
class Field:
    """A number in a message: a dotted path, or the name of a joint. `scale` as the YAML file says."""

    path: str
    scale: float = 1.0


@dataclass(frozen=True)
class ImageSource:
    """The topic of one camera. `resize`: whether frames of another size are resized, or refused."""

    name: str
    topic: str
    type: str
    resize: bool = False


@dataclass(frozen=True)
class VectorSource:
    """The topic of one proprioception vector: value i = message field i * scale."""

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class ActionSink:
    """Where one part of the action goes: message field = value * scale, divided by the tick if `per_second`.

    `limits` names one parameter for the length of the part, or one for each value.
    """

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    per_second: bool = False
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class RobotContract:
    """All topics of one robot. `check` says whether a policy fits it."""

    robot: str
    base_frame: str
    images: tuple[ImageSource, ...]
    vectors: tuple[VectorSource, ...]
    actions: tuple[ActionSink, ...]
    path: str

    def check(self, spec: PolicySpec, *, whose: str = "this checkpoint") -> None:
        """Raise `UserError` at the first name, size or robot in which the contract and `whose` spec differ."""
        if self.robot != spec.robot:
            raise UserError(
                f"{self.path} describes robot '{self.robot}', but {whose} is for '{spec.robot}'; "
                f"give the contract of '{spec.robot}', or what was made for '{self.robot}'"
            )
        self._check_names(
            whose,
            "camera",
            [source.name for source in self.images],
            [item.name for item in spec.cameras],
        )
        vectors = {item.name: item.size for item in spec.proprioception}
        self._check_names(
            whose, "proprioception", [source.name for source in self.vectors], list(vectors)
        )
        for source in self.vectors:
            self._check_field_count(source, vectors[source.name])
        parts = {part.name: part for part in spec.actions}
        self._check_names(whose, "action part", [sink.name for sink in self.actions], list(parts))
        for sink in self.actions:
            self._check_sink(sink, parts[sink.name])

    def _check_names(
        self, whose: str, kind: str, ours: Sequence[str], theirs: Sequence[str]
    ) -> None:
        for name in ours:
            if name not in theirs:
                raise UserError(
                    f"{kind} '{name}' of {self.path} is not in {whose}; it has: {', '.join(theirs) or 'none'}"
                )
        for name in theirs:
            if name not in ours:
                raise UserError(
                    f"{kind} '{name}' of {whose} has no topic in {self.path}, which has: "
                    f"{', '.join(ours) or 'none'}; add it there"
                )

    def _check_field_count(self, source: VectorSource | ActionSink, size: int) -> None:
        if len(source.fields) != size:
            raise UserError(
                f"'{source.name}' of {self.path} has {len(source.fields)} fields; its values are {size}, "
                "one field for each"
            )

    def _check_sink(self, sink: ActionSink, part: ActionPart) -> None:
        if part.size > 1:  # one value may go to several fields: two fingers
            self._check_field_count(sink, part.size)
        if sink.limits and len(sink.limits) not in (1, part.size):
            raise UserError(
                f"'{sink.name}' of {self.path} has {len(sink.limits)} limits; "
                f"give one for the whole part or {part.size}, one for each value"
            )


def default_contract() -> Path:
    """The contract of the simulated Fetch, which comes with this package."""
    return Path(str(resources.files("ttm_policy") / "fetch_kitchen.yaml"))


def load_contract(path: str | Path | None = None) -> RobotContract:
    """Read a contract; `None` or an empty string is the simulated Fetch's. Raises `UserError` that names the entry."""
    file = Path(path) if path else default_contract()
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UserError(
            f"no contract at {file} ({error.strerror}); give the path of a YAML file"
        ) from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(
            f"{file} holds no contract; it needs robot, base_frame, observations and actions"
        )
    return _parse(data, file.name)


def _parse(data: Mapping[str, Any], file: str) -> RobotContract:
    _require_keys(data, {"robot", "base_frame", "observations", "actions"}, set(), file)
    images, vectors = [], []
    for name, entry in _entries(data, "observations", file):
        where = f"{file}: observation '{name}'"
        if _require_type(entry, (*IMAGE_TYPES, *VECTOR_TYPES), where) in IMAGE_TYPES:
            _require_keys(entry, {"topic", "type"}, {"resize"}, where)
            images.append(
                ImageSource(name, entry["topic"], entry["type"], bool(entry.get("resize", False)))
            )
        else:
            _require_keys(entry, {"topic", "type", "fields"}, set(), where)
            vectors.append(VectorSource(name, entry["topic"], entry["type"], _fields(entry, where)))
    sinks = tuple(
        _sink(name, entry, f"{file}: action '{name}'")
        for name, entry in _entries(data, "actions", file)
    )
    _refuse_two_types(sinks, file)
    return RobotContract(
        data["robot"], data["base_frame"], tuple(images), tuple(vectors), sinks, file
    )


def _entries(data: Mapping[str, Any], section: str, file: str) -> list[tuple[str, dict[str, Any]]]:
    entries = data[section]
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) for entry in entries.values()
    ):
        raise UserError(f"{file}: '{section}' must map names to entries with topic, type, …")
    return list(entries.items())


def _sink(name: str, entry: Mapping[str, Any], where: str) -> ActionSink:
    kind = _require_type(entry, COMMAND_TYPES, where)
    _require_keys(entry, {"topic", "type", "fields"}, {"per_second", "limit"}, where)
    limits = entry.get("limit", ())
    limits = (limits,) if isinstance(limits, str) else tuple(limits)
    for limit in limits:
        if limit not in LIMITS:
            raise UserError(f"{where} has limit '{limit}'; choose of: {', '.join(LIMITS)}")
    if kind in MOTION_TYPES and not limits:
        raise UserError(
            f"{where} moves the robot without a limit; add limit: with one of {', '.join(LIMITS)}"
        )
    return ActionSink(
        name,
        entry["topic"],
        kind,
        _fields(entry, where),
        bool(entry.get("per_second", False)),
        limits,
    )


def _fields(entry: Mapping[str, Any], where: str) -> tuple[Field, ...]:
    fields = []
    for item in entry["fields"]:
        data = {"field": item} if isinstance(item, str) else item
        if (
            not isinstance(data, dict)
            or not isinstance(data.get("field"), str)
            or not data.get("scale", 1.0)
        ):
            raise UserError(
                f"{where} has field {item!r}; write a name, or {{field: name, scale: number not 0}}"
            )
        fields.append(Field(data["field"], float(data.get("scale", 1.0))))
    if not fields:
        raise UserError(f"{where} has no fields; name one for each value")
    return tuple(fields)


def _require_type(entry: Mapping[str, Any], known: Sequence[str], where: str) -> str:
    if entry.get("type") not in known:
        raise UserError(f"{where} has type {entry.get('type')!r}; choose of: {', '.join(known)}")
    return str(entry["type"])


def _require_keys(
    entry: Mapping[str, Any], needed: set[str], optional: set[str], where: str
) -> None:
    missing, unknown = needed - set(entry), set(entry) - needed - optional
    if missing:
        raise UserError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown:
        raise UserError(
            f"{where} has unknown {', '.join(sorted(unknown))}; it takes {', '.join(sorted(needed | optional))}"
        )
    topic = entry.get("topic", "ok")
    if not isinstance(topic, str) or not topic or " " in topic:
        raise UserError(
            f"{where} has topic {topic!r}; a topic is a name such as cmd_vel, without spaces"
        )


def _refuse_two_types(sinks: Sequence[ActionSink], file: str) -> None:
    types: dict[str, str] = {}
    for sink in sinks:
        if types.setdefault(sink.topic, sink.type) != sink.type:
            raise UserError(
                f"{file}: topic {sink.topic} has two types, {types[sink.topic]} and {sink.type}; keep one"
            )
