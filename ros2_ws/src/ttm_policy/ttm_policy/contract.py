"""The contract between a robot's topics and a policy.

It says which topic, message type and fields supply each observation of the `PolicySpec`, and to
which topic each part of the action is sent. `ttm_policy.contract` reads it from YAML.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_topic_name import validate_topic_name

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec
from ttm_policy.parameters import LIMIT_KINDS

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
"""Velocity commands, which move the robot.

They always need a limit, and are set to zero to stop the robot.
"""
JOINT_TYPES = ("trajectory_msgs/JointTrajectory",)
"""Goals of joints, whose positions always need a range or a limit of the speed."""


RAMP = 0.5
"""The share of a tick in which a smooth part of a command goes over to its new value."""

EXECUTED_ACTION = "executed action"
"""The name of the input that says what the robot did."""


@dataclass(frozen=True)
class Field:
    """A number in a message: a dotted path or the name of a joint, and its factor.

    `minimum` and `maximum` are in the message's own unit. They bound what an observation may plausibly
    be, and where a joint may be sent.
    """

    path: str
    scale: float = 1.0
    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class ImageSource:
    """The topic of one camera.

    `resize` says whether frames of another size are resized or refused, and `repeat` whether a frame
    may enter the memory again while there is no newer one. `min_contrast` is the smallest standard
    deviation of the grey values, 0 to 127, below which a frame is refused.
    """

    name: str
    topic: str
    type: str
    resize: bool = False
    repeat: bool = False
    min_contrast: float = 0.0
    frame_id: str = ""
    """The only accepted `header.frame_id`; empty to accept any."""
    publishers: int = 1
    """The largest accepted number of publishers of the topic."""


@dataclass(frozen=True)
class VectorSource:
    """The topic of one proprioception vector. Value i is message field i times its scale."""

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    frame_id: str = ""
    """The only accepted `header.frame_id`; empty to accept any."""
    publishers: int = 1
    """The largest accepted number of publishers of the topic."""


@dataclass(frozen=True)
class ActionSink:
    """The topic to which one part of the action is sent.

    A message field is the value times its scale. With `per_second` it is divided by the length of a
    tick in seconds. `limits` names one parameter that limits the length of the whole part, or one
    for each value.
    """

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    per_second: bool = False
    limits: tuple[str, ...] = ()
    smooth: bool = False
    """Whether a velocity goes over to its next value linearly between two ticks, and not at once."""
    measured: str = ""
    """The observation from which recordings compute this part; empty if they take the command."""


@dataclass(frozen=True)
class Workspace:
    """A box in the base frame, in m, that the gripper must not leave.

    The part `action` moves the gripper, and the observation `position` says where it is.
    """

    action: str
    position: str
    minimum: tuple[float, float, float]
    maximum: tuple[float, float, float]


@dataclass(frozen=True)
class RobotContract:
    """All topics of one robot. `path` is the name of its file, for error messages.

    `executed` is the topic on which the robot reports what it did in place of the last command. Without
    it, the command counts as executed. `max_skew_s` is the longest accepted time between the oldest and
    the newest input of a tick, in seconds. `rate_hz` is the control rate, None if the contract names none.
    """

    robot: str
    base_frame: str
    images: tuple[ImageSource, ...]
    vectors: tuple[VectorSource, ...]
    actions: tuple[ActionSink, ...]
    path: str
    executed: VectorSource | None = None
    max_skew_s: float = math.inf
    workspace: Workspace | None = None
    rate_hz: float | None = None

    @property
    def inputs(self) -> tuple[ImageSource | VectorSource, ...]:
        """All topics that a tick needs a message of."""
        executed = () if self.executed is None else (self.executed,)
        return (*self.images, *self.vectors, *executed)

    @property
    def motion_parts(self) -> tuple[str, ...]:
        """The names of the action parts that are zero while the robot stands still."""
        return tuple(sink.name for sink in self.actions if sink.type in MOTION_TYPES)

    def measurement_of(self, joint: str) -> tuple[VectorSource, int] | None:
        """Return the observation that measures a joint, and the joint's place in it."""
        for source in self.vectors:
            for index, field in enumerate(source.fields):
                if source.type == "sensor_msgs/JointState" and field.path == joint:
                    return source, index
        return None

    def check(self, spec: PolicySpec, *, whose: str = "this checkpoint") -> None:
        """Raise `UserError` unless names, sizes, rate and robot of contract and `spec` agree.

        whose: what `spec` belongs to, for the message.
        """
        if self.robot != spec.robot:
            raise UserError(
                f"{self.path} describes robot '{self.robot}', but {whose} is for '{spec.robot}'; "
                f"give the contract of '{spec.robot}', or what was made for '{self.robot}'"
            )
        if self.rate_hz not in (None, spec.rate_hz):
            raise UserError(
                f"{self.path} says rate_hz {self.rate_hz:g}, but {whose} is for {spec.rate_hz:g} Hz; give "
                "the same rate, or leave rate_hz out of the contract"
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
        if self.executed is not None:
            self._check_field_count(self.executed, spec.action_size)
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
                    f"{kind} '{name}' of {self.path} is not in {whose}; "
                    f"it has: {', '.join(theirs) or 'none'}"
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
                f"'{source.name}' of {self.path} has {len(source.fields)} fields; "
                f"its values are {size}, one field for each"
            )

    def _check_sink(self, sink: ActionSink, part: ActionPart) -> None:
        if part.size > 1:  # one value may go to several fields: two fingers
            self._check_field_count(sink, part.size)
        if sink.limits and len(sink.limits) not in (1, part.size):
            raise UserError(
                f"'{sink.name}' of {self.path} has {len(sink.limits)} limits; "
                f"give one for the whole part or {part.size}, one for each value"
            )


# Reads a YAML file that a person wrote, and says in one line what is wrong with it.


def read_yaml(file: Path, what: str, holds: str) -> dict[Any, Any]:
    """Return the mapping that a YAML file holds. Raises `UserError` if there is none.

    what: what the file is. holds: the keys that it must have. Both are for the message.
    """
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=_NoRepeats)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"no {what} at {file} ({reason}); give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(f"{file} holds no {what}; it needs {holds}")
    return data


class _NoRepeats(yaml.SafeLoader):
    """Refuses a key that comes twice in a mapping; YAML itself keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' comes twice; remove one", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


# Checks of single entries of a contract's YAML file.
#
# Each check raises `UserError` with one line: the entry, the rule, and what to write instead.

FIELD_KEYS = frozenset({"field", "scale", "min", "max"})
"""All keys of a field."""


def require_keys(entry: Any, needed: Set[str], optional: Set[str], where: str) -> None:
    """Check that `entry` is a mapping with all needed keys and no unknown ones, and its topic."""
    known = ", ".join(sorted(needed | optional))
    if not isinstance(entry, dict):
        raise UserError(f"{where} is {entry!r}; give a mapping with {known}")
    missing, unknown = needed - set(entry), set(entry) - needed - optional
    if missing:
        raise UserError(f"{where} lacks {', '.join(sorted(missing))}; add it")
    if unknown:
        raise UserError(
            f"{where} has unknown {', '.join(sorted(str(key) for key in unknown))}; "
            f"it takes {known}"
        )
    if "topic" in entry:
        _require_topic(entry["topic"], where)


def topic_problem(name: Any) -> str:
    """Return why a value is no name of a topic, or an empty text."""
    try:
        validate_topic_name(name if isinstance(name, str) else "")
    except InvalidTopicNameException as error:
        return str(error).splitlines()[0].removesuffix(":")
    return ""


def _require_topic(topic: Any, where: str) -> None:
    if reason := topic_problem(topic):
        raise UserError(f"{where} has topic {topic!r} ({reason}); give a ROS name such as cmd_vel")


def require_type(entry: Any, known: Sequence[str], where: str) -> str:
    """Return the message type of an entry if it is among the known ones."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    if kind not in known:
        hint = " (without /msg)" if isinstance(kind, str) and "/msg/" in kind else ""
        raise UserError(f"{where} has type {kind!r}; choose of{hint}: {', '.join(known)}")
    return str(kind)


def require_name(data: Mapping[str, Any], key: str, file: str, example: str) -> str:
    """Return the name under a key of the whole file."""
    name = data[key]
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise UserError(f"{file} has {key} {name!r}; give a name without spaces, such as {example}")
    return name


def boolean(entry: Mapping[str, Any], key: str, where: str) -> bool:
    """Return a key that is true or false, and false if it is left out."""
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise UserError(f"{where} has {key} {value!r}; give true or false, without quotes")
    return value


def number(value: Any, what: str) -> float:
    """Return a number that is not NaN. what: the beginning of the error's sentence."""
    try:
        found = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        found = math.nan
    if math.isnan(found):
        raise UserError(f"{what} {value!r}; give a number")
    return found


def entries(data: Mapping[str, Any], section: str, file: str) -> list[tuple[str, Any]]:
    """Return the names and entries of a section, which must have one at least."""
    found = data[section]
    if not isinstance(found, dict) or not found:
        raise UserError(
            f"{file}: {section} must map at least one name to an entry with topic, type, …; "
            f"it is {found!r}"
        )
    for name in found:
        if not isinstance(name, str):
            raise UserError(
                f"{file}: {section} has the name {name!r}; give text, in quotes if need be"
            )
    return list(found.items())


def fields(entry: Mapping[str, Any], where: str) -> tuple[Field, ...]:
    """Return the fields of an entry, of which no two may be the same."""
    items = entry["fields"]
    if not isinstance(items, list) or not items:
        raise UserError(f"{where} has fields {items!r}; give a list with one field for each value")
    found = tuple(_field(item, where) for item in items)
    if twice := _first_twice([field.path for field in found]):
        raise UserError(f"{where} names field '{twice}' twice; give each value a field of its own")
    return found


def _field(item: Any, where: str) -> Field:
    data = {"field": item} if isinstance(item, str) else item
    require_keys(data, {"field"}, FIELD_KEYS, f"{where}, field {item!r},")
    name = data["field"]
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise UserError(f"{where} has field {name!r}; give the field's name, without spaces")
    what = f"{where}, field '{name}', has"
    scale = number(data.get("scale", 1.0), f"{what} scale")
    if not scale or not math.isfinite(scale):
        raise UserError(f"{what} scale {scale:g}; give a finite number that is not 0")
    low = number(data.get("min", -math.inf), f"{what} min")
    high = number(data.get("max", math.inf), f"{what} max")
    if not low < high:
        raise UserError(f"{what} min {low:g} and max {high:g}; give a min below the max")
    return Field(name, scale, low, high)


def _first_twice(names: Collection[str]) -> str:
    """Return the first name that comes a second time, or an empty string."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


# Reads the entry of one action part, and checks that what moves the robot is limited.

_OPTIONAL = frozenset({"per_second", "limit", "smooth", "measured"})


def read_action(name: str, entry: Any, where: str) -> ActionSink:
    """Return where one part of the action is sent. Raises `UserError` for any mistake."""
    kind = require_type(entry, COMMAND_TYPES, where)
    require_keys(entry, {"topic", "type", "fields"}, _OPTIONAL, where)
    found = fields(entry, where)
    options = {key: boolean(entry, key, where) for key in ("per_second", "smooth")}
    for key, given in options.items():
        if given and kind not in MOTION_TYPES:
            raise UserError(
                f"{where} has {key}, but {kind} is no velocity; leave {key} out, or choose of: "
                f"{', '.join(MOTION_TYPES)}"
            )
    limits = _limits(entry, kind, len(found), where)
    _require_units(limits, kind, found, where)
    _require_fields(kind, found, limits, where)
    measured = entry.get("measured", "")
    if not isinstance(measured, str):
        raise UserError(f"{where} has measured {measured!r}; give the name of an observation")
    return ActionSink(
        name, entry["topic"], kind, found, limits=limits, measured=measured, **options
    )


def _limits(entry: Mapping[str, Any], kind: str, size: int, where: str) -> tuple[str, ...]:
    """Return the names of the limits: none, one for the whole part, or one for each of `size` fields."""
    given = entry.get("limit", [])
    limits = [given] if isinstance(given, str) else given
    usable = [name for name in LIMIT_KINDS if _fits(name, kind, None)]
    choice = ", ".join(usable) or "none, leave it out"
    if not isinstance(limits, list) or not all(isinstance(limit, str) for limit in limits):
        raise UserError(
            f"{where} has limit {given!r}; give names of parameters, choose of: {choice}"
        )
    if len(limits) not in (0, 1, size):
        raise UserError(
            f"{where} has {len(limits)} limits; give one for the whole part or {size}, "
            "one for each field"
        )
    for limit in limits:
        if limit not in usable:
            raise UserError(
                f"{where} has limit '{limit}', which {kind} cannot have; choose of: {choice}"
            )
    if kind in MOTION_TYPES and not limits:
        raise UserError(f"{where} moves the robot without a limit; add limit: with one of {choice}")
    return tuple(limits)


def _require_units(
    limits: tuple[str, ...], kind: str, found: tuple[Field, ...], where: str
) -> None:
    """Raise `UserError` unless each field has the unit of the limit that bounds it."""
    each = limits * len(found) if len(limits) == 1 else limits
    for field, limit in zip(found, each, strict=bool(limits)):
        if not _fits(limit, kind, field):
            raise UserError(
                f"{where} has limit '{limit}' for field '{field.path}', which is not "
                f"{LIMIT_KINDS[limit].moves}; take a limit of its own for each field"
            )


def _fits(limit: str, kind: str, field: Field | None) -> bool:
    """Return whether a limit is of the unit of a field, or for None of some field of the type."""
    moves = LIMIT_KINDS[limit].moves
    if kind in JOINT_TYPES:
        return moves == "joints"
    if kind not in MOTION_TYPES:
        return False
    return moves != "joints" and (field is None or f".{moves}." in f".{field.path}")


def _require_fields(
    kind: str, found: tuple[Field, ...], limits: tuple[str, ...], where: str
) -> None:
    """Raise `UserError` for a field that is not the command's own, or a joint without any bound."""
    for field in found:
        ranged = math.isfinite(field.minimum) and math.isfinite(field.maximum)
        what = f"{where}, field '{field.path}',"
        if kind not in JOINT_TYPES and (field.minimum > -math.inf or field.maximum < math.inf):
            raise UserError(
                f"{what} has min or max, which are for joints; leave them out, use limit:"
            )
        if kind in JOINT_TYPES and not ranged and not limits:
            raise UserError(
                f"{what} moves a joint without a limit; add min: and max: there, or limit: "
                "max_joint_rad_s"
            )
        if field.path.split(".")[0] == "header":
            raise UserError(
                f"{what} is set by the node itself; name a field that carries the command"
            )
    if kind == "std_msgs/Bool" and any(field.scale != 1.0 for field in found):
        raise UserError(f"{where} has a scale, but {kind} is true or false; leave scale out")


# Reads what a contract says about when an input may be trusted.
#
# These keys are optional: `frame_id`, `publishers`, `repeat`, `min_contrast`, and `max_skew_s` of the
# whole contract. A mistake raises `UserError` that names the entry.

INPUT_KEYS = frozenset({"frame_id", "publishers"})
"""The optional keys of every observation."""
IMAGE_KEYS = INPUT_KEYS | {"resize", "repeat", "min_contrast"}
"""The optional keys of a camera."""
MOST_CONTRAST = 127.5
"""The standard deviation of grey values of which one half is 0 and the other half 255."""


def input_rules(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `frame_id` and `publishers` of one observation."""
    frame_id, publishers = entry.get("frame_id", ""), entry.get("publishers", 1)
    if not isinstance(frame_id, str):
        raise UserError(
            f"{where} has frame_id {frame_id!r}; give the header's frame as text, such as base_link"
        )
    if not isinstance(publishers, int) or isinstance(publishers, bool) or publishers < 1:
        raise UserError(
            f"{where} has publishers {publishers!r}; give the number of nodes that publish the topic, "
            "1 or more"
        )
    return {"frame_id": frame_id, "publishers": publishers}


def image_rules(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the optional keys of a camera."""
    contrast = number(entry.get("min_contrast", 0.0), f"{where} has min_contrast")
    if not 0 <= contrast < MOST_CONTRAST:
        raise UserError(
            f"{where} has min_contrast {contrast:g}; give a standard deviation of grey values from 0 "
            f"to below {MOST_CONTRAST}"
        )
    return {
        **input_rules(entry, where),
        "resize": boolean(entry, "resize", where),
        "repeat": boolean(entry, "repeat", where),
        "min_contrast": contrast,
    }


def max_skew_s(data: Mapping[str, Any], file: str) -> float:
    """Return the longest accepted time between the inputs of a tick; infinity if there is none."""
    skew_s = number(data.get("max_skew_s", math.inf), f"{file} has max_skew_s")
    if not skew_s > 0:
        raise UserError(f"{file} has max_skew_s {skew_s:g}; give seconds above 0, or leave it out")
    return skew_s


# Says where a robot stands as an action, what would keep it there, and what tells its motion.

Vector = npt.NDArray[np.float32]


def measured_goals(
    contract: RobotContract, spec: PolicySpec, observation: Mapping[str, npt.NDArray[Any]]
) -> Vector:
    """Return the action (A,) that keeps the robot where the observation shows it.

    Velocities are 0, goals of joints their measured positions, or the nearer one of two commands. Goals
    of joints that no observation measures are NaN.
    """
    goals = np.zeros(spec.action_size, np.float32)
    for sink in contract.actions:
        if sink.type in JOINT_TYPES:
            where = spec.action_slices[sink.name]
            fields = sink.fields[: where.stop - where.start]
            goals[where] = [_goal(field, contract, observation) for field in fields]
    low, high = spec.action_limits
    nearer = np.where(goals >= spec.thresholds, high, low)
    return np.where(spec.binary_mask & np.isfinite(goals), nearer, goals).astype(np.float32)


def goal_sources(contract: RobotContract) -> tuple[VectorSource, ...]:
    """Return the observations that measure where the joints of the action are."""
    paths = [f.path for s in contract.actions if s.type in JOINT_TYPES for f in s.fields]
    found = [contract.measurement_of(path) for path in paths]
    names = {source.name for source, _ in filter(None, found)}
    return tuple(source for source in contract.vectors if source.name in names)


def _goal(
    field: Field, contract: RobotContract, observation: Mapping[str, npt.NDArray[Any]]
) -> float:
    measured = contract.measurement_of(field.path)
    if measured is None:
        return float("nan")
    source, place = measured
    return float(observation[source.name][place]) / source.fields[place].scale / field.scale


def measured_places(source: VectorSource, path: str) -> tuple[int, ...]:
    """Return the places of an observation that tell the velocity for a command's field.

    path: such as `twist.linear.x`. One place measures that velocity or the position along it, four are
    the orientation x, y, z, w. Empty if nothing in the observation tells it.
    """
    kind, axis = path.split(".")[-2:]
    turn = [f"orientation.{each}" for each in "xyzw"]
    paths = [f".{field.path}" for field in source.fields]
    for names in ([f"{kind}.{axis}"], [f"position.{axis}"] if kind == "linear" else turn):
        found = [i for name in names for i, each in enumerate(paths) if each.endswith(f".{name}")]
        if len(found) == len(names):
            return tuple(found)
    return ()


# Checks that the entries of a contract do not contradict each other.


def require_consistent(contract: RobotContract) -> None:
    """Raise `UserError` that names the first two entries that do not fit together."""
    _require_one_type(contract)
    _require_one_direction(contract)
    _require_one_value_per_field(contract)
    _require_measured_joints(contract)
    for sink in contract.actions:
        if sink.measured:
            _require_measured(contract, sink)
    if contract.workspace is not None:
        _require_workspace(contract, contract.workspace)


def _require_one_type(contract: RobotContract) -> None:
    types: dict[str, str] = {}
    for entry in (*contract.inputs, *contract.actions):
        if types.setdefault(entry.topic, entry.type) != entry.type:
            raise UserError(
                f"{contract.path}: topic {entry.topic} has two types, {types[entry.topic]} and "
                f"{entry.type}; keep one"
            )


def _require_one_direction(contract: RobotContract) -> None:
    commands = {sink.topic: sink.name for sink in contract.actions}
    for source in contract.inputs:
        if source.topic in commands:
            raise UserError(
                f"{contract.path}: topic {source.topic} feeds '{source.name}' and takes "
                f"'{commands[source.topic]}'; a policy must not see its own command as a "
                "measurement: name the robot's topic"
            )


def _require_one_value_per_field(contract: RobotContract) -> None:
    users: dict[tuple[str, str], str] = {}
    for sink in contract.actions:
        for field in sink.fields:
            other = users.setdefault((sink.topic, field.path), sink.name)
            if other != sink.name:
                raise UserError(
                    f"{contract.path}: actions '{other}' and '{sink.name}' both set '{field.path}' "
                    f"of {sink.topic}; give each a field of its own"
                )


def _require_measured_joints(contract: RobotContract) -> None:
    for sink in contract.actions:
        for field in sink.fields if sink.limits and sink.type in JOINT_TYPES else ():
            if contract.measurement_of(field.path) is None:
                raise UserError(
                    f"{contract.path}: action '{sink.name}' limits the speed of joint "
                    f"'{field.path}', which no observation measures; add the joint to one of type "
                    "sensor_msgs/JointState, or give it min: and max: in place of limit:"
                )


def _require_measured(contract: RobotContract, sink: ActionSink) -> None:
    """Raise `UserError` unless an observation tells what a part did that is computed from it."""
    where = f"{contract.path}: action '{sink.name}' has measured '{sink.measured}'"
    source = next((each for each in contract.vectors if each.name == sink.measured), None)
    if source is None:
        known = ", ".join(each.name for each in contract.vectors) or "none"
        raise UserError(f"{where}; name an observation of numbers: {known}")
    if sink.type not in (*MOTION_TYPES, *JOINT_TYPES):
        raise UserError(f"{where}, but {sink.type} is no motion; leave measured out")
    for field in sink.fields:
        measured = contract.measurement_of(field.path)
        told = (
            bool(measured_places(source, field.path))
            if sink.type in MOTION_TYPES
            else measured is not None and measured[0] == source
        )
        if not told:
            raise UserError(
                f"{where}, which does not tell '{field.path}'; a velocity needs itself or its position "
                "there, a turn all four values of the orientation, and a joint its position"
            )


def _require_workspace(contract: RobotContract, box: Workspace) -> None:
    where = f"{contract.path}: workspace"
    sink = next((sink for sink in contract.actions if sink.name == box.action), None)
    axes = [] if sink is None else sorted(f".{field.path}"[-9:] for field in sink.fields)
    if (
        sink is None
        or sink.type not in MOTION_TYPES
        or axes != [".linear.x", ".linear.y", ".linear.z"]
    ):
        raise UserError(
            f"{where} has action '{box.action}'; name an action part whose fields are linear.x, "
            "linear.y and linear.z of a twist"
        )
    source = next((vector for vector in contract.vectors if vector.name == box.position), None)
    paths = set() if source is None else {field.path for field in source.fields}
    if not {f"pose.position.{axis}" for axis in "xyz"} <= paths:
        raise UserError(
            f"{where} has position '{box.position}'; name an observation with the fields "
            "pose.position.x, pose.position.y and pose.position.z in the base frame"
        )


# Reads a robot contract from its YAML file. `fetch_kitchen.yaml` is the commented example.

_NEEDED = frozenset({"robot", "base_frame", "observations", "actions"})
_CONTRACT_FILE_OPTIONAL = frozenset({"executed_action", "max_skew_s", "rate_hz", "workspace"})


def default_contract() -> Path:
    """Return the path of the simulated Fetch's contract, which is installed with this package."""
    return Path(str(resources.files("ttm_policy") / "fetch_kitchen.yaml"))


def load_contract(path: str | Path | None = None) -> RobotContract:
    """Read a contract from a YAML file.

    None or an empty string stands for the simulated Fetch's contract. Raises `UserError` that names
    the faulty entry.
    """
    file = Path(path) if path else default_contract()
    data = read_yaml(file, "contract", "robot, base_frame, observations and actions")
    contract = _parse(data, file.name)
    require_consistent(contract)
    return contract


def _parse(data: Mapping[str, Any], file: str) -> RobotContract:
    require_keys(data, _NEEDED, _CONTRACT_FILE_OPTIONAL, file)
    sources = [
        _source(name, entry, f"{file}: observation '{name}'")
        for name, entry in entries(data, "observations", file)
    ]
    sinks = tuple(
        read_action(name, entry, f"{file}: action '{name}'")
        for name, entry in entries(data, "actions", file)
    )
    return RobotContract(
        require_name(data, "robot", file, "my_robot"),
        require_name(data, "base_frame", file, "base_link"),
        tuple(source for source in sources if isinstance(source, ImageSource)),
        tuple(source for source in sources if isinstance(source, VectorSource)),
        sinks,
        file,
        _executed(data, file),
        max_skew_s(data, file),
        _workspace(data, file),
        _rate_hz(data, file),
    )


def _source(name: str, entry: Any, where: str) -> ImageSource | VectorSource:
    kind = require_type(entry, (*IMAGE_TYPES, *VECTOR_TYPES), where)
    if kind not in IMAGE_TYPES:
        return _vector(name, entry, where)
    require_keys(entry, {"topic", "type"}, IMAGE_KEYS, where)
    return ImageSource(name, entry["topic"], kind, **image_rules(entry, where))


def _vector(name: str, entry: Mapping[str, Any], where: str) -> VectorSource:
    require_keys(entry, {"topic", "type", "fields"}, INPUT_KEYS, where)
    rules = input_rules(entry, where)
    return VectorSource(name, entry["topic"], entry["type"], fields(entry, where), **rules)


def _executed(data: Mapping[str, Any], file: str) -> VectorSource | None:
    if "executed_action" not in data:
        return None
    entry, where = data["executed_action"], f"{file}: executed_action"
    if not isinstance(entry, dict):
        raise UserError(
            f"{where} must have topic, type and fields; leave it out if nothing reports it"
        )
    require_type(entry, VECTOR_TYPES, where)
    return _vector(EXECUTED_ACTION, entry, where)


def _rate_hz(data: Mapping[str, Any], file: str) -> float | None:
    if "rate_hz" not in data:
        return None
    rate_hz = number(data["rate_hz"], f"{file} has rate_hz")
    if not 0 < rate_hz < math.inf:
        raise UserError(
            f"{file} has rate_hz {rate_hz:g}; give ticks a second above 0, or leave it out"
        )
    return rate_hz


def _workspace(data: Mapping[str, Any], file: str) -> Workspace | None:
    if "workspace" not in data:
        return None
    entry, where = data["workspace"], f"{file}: workspace"
    require_keys(entry, {"action", "position", "min", "max"}, set(), where)
    low, high = (_point(entry, key, where) for key in ("min", "max"))
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(
            f"{where} has a min that is not below its max; give x, y and z of both corners"
        )
    return Workspace(str(entry["action"]), str(entry["position"]), low, high)


def _point(entry: Mapping[str, Any], key: str, where: str) -> tuple[float, float, float]:
    values = entry[key]
    if not isinstance(values, list) or len(values) != 3:
        raise UserError(f"{where} has {key} {values!r}; give a list of x, y and z in m")
    x, y, z = (number(value, f"{where} has in {key}") for value in values)
    return x, y, z
