"""The contract between a robot's topics and a policy, which is read from a YAML file.

It says which topic, message type and fields supply each observation of the `PolicySpec`, and to which
topic each part of the action is sent. `fetch_kitchen.yaml` is the commented example. `_RULES` has the rules
of a single key, `_action_problems` those of an action part, and `_contradictions` those between entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_topic_name import validate_topic_name

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec, ProprioceptionSpec
from ttm_policy.parameters import LIMIT_KINDS

IMAGE_TYPES = ("sensor_msgs/Image", "sensor_msgs/CompressedImage")
JOINT_STATE = "sensor_msgs/JointState"
VECTOR_TYPES = (
    JOINT_STATE,
    "geometry_msgs/PoseStamped",
    "geometry_msgs/TwistStamped",
    "nav_msgs/Odometry",
)
MOTION_TYPES = ("geometry_msgs/TwistStamped", "geometry_msgs/Twist")
"""Velocity commands. They always need a limit, and are set to zero to stop the robot."""
JOINT_TYPES = ("trajectory_msgs/JointTrajectory",)
"""Goals of joints, whose positions always need a range or a limit of the speed."""
COMMAND_TYPES = (*MOTION_TYPES, *JOINT_TYPES, "std_msgs/Bool")
RAMP = 0.5
"""The share of a tick in which a smooth part of a command goes over to its new value."""
EXECUTED_ACTION = "executed action"
"""The name of the input that says what the robot did."""
MOST_CONTRAST = 127.5
"""The standard deviation of grey values of which one half is 0 and the other half 255."""


@dataclass(frozen=True)
class Field:
    """A number in a message: a dotted path or the name of a joint, and its factor.

    `minimum` and `maximum`, in the message's unit, bound an observation, and where a joint may be sent.
    """

    path: str
    scale: float = 1.0
    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class ImageSource:
    """The topic of one camera.

    `resize` says whether larger frames are reduced or refused, and `repeat` whether a frame may enter the
    memory again while there is no newer one. `min_contrast` is the least accepted standard deviation of
    grey values, `frame_id` the only accepted frame of the header, empty for any, and
    `publishers` the largest accepted number of publishers.
    """

    name: str
    topic: str
    type: str
    resize: bool = False
    repeat: bool = False
    min_contrast: float = 0.0
    frame_id: str = ""
    publishers: int = 1


@dataclass(frozen=True)
class VectorSource:
    """The topic of one proprioception vector. Value i is message field i times its scale."""

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    frame_id: str = ""
    publishers: int = 1


@dataclass(frozen=True)
class ActionSink:
    """The topic to which one part of the action is sent.

    A message field is the value times its scale, with `per_second` divided by the length of a tick. `limits`
    names one parameter that limits the length of the whole part, or one for each value. With `smooth` a
    velocity goes over to its next value linearly between two ticks. `measured` is the observation from
    which recordings compute this part, empty to take the command.
    """

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    per_second: bool = False
    limits: tuple[str, ...] = ()
    smooth: bool = False
    measured: str = ""


@dataclass(frozen=True)
class Workspace:
    """A box in the base frame, in m, that the gripper must not leave.

    The action part `action` moves the gripper, and the observation `position` says where it is.
    """

    action: str
    position: str
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]


@dataclass(frozen=True)
class RobotContract:
    """All topics of one robot. `path` is the name of its file, for error messages.

    `executed` is the topic on which the robot reports what it did; without it, the command counts.
    `max_skew_s` is the longest accepted time between the oldest and the newest input of a tick.
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

    def vector(self, name: str) -> VectorSource | None:
        """Return the proprioception of this name."""
        return next((source for source in self.vectors if source.name == name), None)

    def measurement_of(self, joint: str) -> tuple[VectorSource, int] | None:
        """Return the observation that measures a joint, and the joint's place in it."""
        for source in self.vectors:
            for index, field in enumerate(source.fields):
                if source.type == JOINT_STATE and field.path == joint:
                    return source, index
        return None

    def check(self, spec: PolicySpec, *, whose: str = "this checkpoint") -> None:
        """Raise `UserError` unless contract and `spec`, which is of `whose`, agree in all that they name."""
        _raise_first("", self._misfits(spec, whose))

    def for_policy(self, spec: PolicySpec, *, whose: str = "this checkpoint") -> RobotContract:
        """Return the contract without the cameras that the policy of `spec` does not see; see `check`.

        Further measurements stay, as limits may need them.
        """
        known = spec.observation_names
        seen = replace(self, images=tuple(each for each in self.images if each.name in known))
        more = (each for each in self.vectors if each.name not in known)
        vectors = (ProprioceptionSpec(v.name, tuple(f.path for f in v.fields)) for v in more)
        seen.check(replace(spec, proprioception=(*spec.proprioception, *vectors)), whose=whose)
        return seen

    def _misfits(self, spec: PolicySpec, whose: str) -> Iterator[str]:
        if self.robot != spec.robot:
            ours = f"{self.path} describes robot '{self.robot}'"
            yield f"{ours}, but {whose} is for '{spec.robot}'; give the contract of that robot"
        if self.rate_hz not in (None, spec.rate_hz):
            ours = f"{self.path} says rate_hz {self.rate_hz:g}"
            yield f"{ours}, but {whose} is for {spec.rate_hz:g} Hz; give the same rate, or none"
        for kind, entries, items in (
            ("camera", self.images, spec.cameras),
            ("proprioception", self.vectors, spec.proprioception),
            ("action part", self.actions, spec.actions),
        ):
            given, known = [each.name for each in entries], [each.name for each in items]
            for name in given:
                if name not in known:
                    has = ", ".join(known) or "none"
                    yield f"{kind} '{name}' of {self.path} is not in {whose}; it has: {has}"
            for name in known:
                if name not in given:
                    yield f"{kind} '{name}' of {whose} has no topic in {self.path}; add it there"
        values = {item.name: item.size for item in spec.proprioception}
        values[EXECUTED_ACTION] = spec.action_size
        sizes = {part.name: part.size for part in spec.actions}
        counts: list[tuple[VectorSource | ActionSink, int]] = [
            (source, values[source.name])
            for source in self.inputs
            if isinstance(source, VectorSource)
        ]
        # One value may go to several fields: two fingers.
        counts += [(sink, sizes[sink.name]) for sink in self.actions if sizes[sink.name] > 1]
        for entry, size in counts:
            if (count := len(entry.fields)) != size:
                what = f"'{entry.name}' of {self.path} has {count} fields"
                yield f"{what}; its values are {size}, one field for each"
        for sink in self.actions:
            if (count := len(sink.limits)) not in (0, 1, size := sizes[sink.name]):
                what = f"'{sink.name}' of {self.path} has {count} limits"
                yield f"{what}; give one for the whole part or {size}, one for each value"


def default_contract() -> Path:
    """Return the path of the simulated Fetch's contract, which is installed with this package."""
    return Path(str(resources.files("ttm_policy") / "fetch_kitchen.yaml"))


def load_contract(path: str | Path | None = None) -> RobotContract:
    """Read a contract; by default the simulated Fetch's. Raises `UserError` with the faulty entry."""
    file = Path(path) if path else default_contract()
    data = read_yaml(file, "contract", "robot, base_frame, observations and actions")
    contract = _contract(data, file.name)
    _raise_first(f"{contract.path}:", _contradictions(contract))
    return contract


def read_yaml(file: Path, what: str, holds: str) -> dict[Any, Any]:
    """Return the mapping of a person's YAML file. what, holds: what it is, and its keys, for messages."""
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


def require_keys(entry: Any, needed: Set[str], optional: Set[str], where: str) -> None:
    """Check that `entry` is a mapping with all needed keys and no unknown ones, and its topic."""
    known = ", ".join(sorted(needed | optional))
    if not isinstance(entry, dict):
        raise UserError(f"{where} is {entry!r}; give a mapping with {known}")
    if missing := needed - set(entry):
        raise UserError(f"{where} lacks {', '.join(sorted(missing))}; add it")
    if unknown := set(entry) - needed - optional:
        names = ", ".join(sorted(str(key) for key in unknown))
        raise UserError(f"{where} has unknown {names}; it takes {known}")
    if "topic" in entry and (reason := topic_problem(entry["topic"])):
        given = f"topic {entry['topic']!r} ({reason})"
        raise UserError(f"{where} has {given}; give a ROS name such as cmd_vel")


def topic_problem(name: Any) -> str:
    """Return why a value is no name of a topic, or an empty text."""
    try:
        validate_topic_name(name if isinstance(name, str) else "")
    except InvalidTopicNameException as error:
        return str(error).splitlines()[0].removesuffix(":")
    return ""


def number(value: Any, what: str) -> float:
    """Return a number that is not NaN. what: the beginning of the error's sentence."""
    try:
        found = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        found = math.nan
    if math.isnan(found):
        raise UserError(f"{what} {value!r}; give a number")
    return found


def _raise_first(where: str, problems: Iterable[str]) -> None:
    for problem in problems:
        raise UserError(f"{where} {problem}".strip())


class _Rule(NamedTuple):
    """The rule of a key, and what to give instead. A default that is a float asks for a number."""

    default: Any
    accepts: Callable[[Any], bool]
    give: str


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value == "".join(value.split())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SWITCH = _Rule(False, lambda v: isinstance(v, bool), "true or false, without quotes")
_RULES: Mapping[str, _Rule] = {
    "robot": _Rule(None, _is_name, "a name without spaces, such as my_robot"),
    "base_frame": _Rule(None, _is_name, "a name without spaces, such as base_link"),
    "field": _Rule(None, _is_name, "the field's name, without spaces"),
    "scale": _Rule(1.0, lambda v: v != 0 and math.isfinite(v), "a finite number that is not 0"),
    "min": _Rule(-math.inf, lambda _: True, "a number"),
    "max": _Rule(math.inf, lambda _: True, "a number"),
    "resize": _SWITCH,
    "repeat": _SWITCH,
    "per_second": _SWITCH,
    "smooth": _SWITCH,
    "frame_id": _Rule("", _is_text, "the header's frame as text, such as base_link"),
    "publishers": _Rule(
        1, lambda v: type(v) is int and v >= 1, "the number of nodes that publish the topic"
    ),
    "min_contrast": _Rule(
        0.0,
        lambda v: 0 <= v < MOST_CONTRAST,
        f"a standard deviation of grey values from 0 to below {MOST_CONTRAST}",
    ),
    "measured": _Rule("", _is_text, "the name of an observation"),
    "limit": _Rule(
        [],
        lambda v: _is_text(v) or (isinstance(v, list) and all(map(_is_text, v))),
        f"names of parameters, choose of: {', '.join(LIMIT_KINDS)}",
    ),
    "max_skew_s": _Rule(math.inf, lambda v: v > 0, "seconds above 0, or leave it out"),
    "rate_hz": _Rule(
        math.nan, lambda v: 0 < v < math.inf, "ticks a second above 0, or leave it out"
    ),
}
_TYPED = frozenset({"topic", "type"})
_SOURCE_KEYS = frozenset({"frame_id", "publishers"})
_IMAGE_KEYS = _SOURCE_KEYS | {"resize", "repeat", "min_contrast"}
_ACTION_KEYS = frozenset({"per_second", "smooth", "measured", "limit"})


def _read(entry: Any, needed: Set[str], optional: Set[str], where: str) -> dict[str, Any]:
    """Return the values of an entry's keys, or their defaults."""
    require_keys(entry, needed, optional, where)
    found = dict(entry)
    for key in sorted((needed | optional) & _RULES.keys()):
        rule = _RULES[key]
        value = found.setdefault(key, rule.default)
        if key in entry:
            if isinstance(rule.default, float):
                value = found[key] = number(value, f"{where} has {key}")
            if not rule.accepts(value):
                raise UserError(f"{where} has {key} {entry[key]!r}; give {rule.give}")
    if "fields" in found:
        found["fields"] = _fields(found["fields"], where)
    return found


def _contract(data: Mapping[str, Any], file: str) -> RobotContract:
    needed = {"robot", "base_frame", "observations", "actions"}
    found = _read(data, needed, {"executed_action", "max_skew_s", "rate_hz", "workspace"}, file)
    sources = _entries(found.pop("observations"), "observation", file, _source)
    actions = tuple(_entries(found.pop("actions"), "action", file, _action))
    if math.isnan(found["rate_hz"]):
        found["rate_hz"] = None
    if "executed_action" in found:
        where = f"{file}: executed_action"
        found["executed"] = _vector(EXECUTED_ACTION, found.pop("executed_action"), where)
    if "workspace" in found:
        found["workspace"] = _workspace(found["workspace"], f"{file}: workspace")
    images = tuple(source for source in sources if isinstance(source, ImageSource))
    vectors = tuple(source for source in sources if isinstance(source, VectorSource))
    return RobotContract(images=images, vectors=vectors, actions=actions, path=file, **found)


def _entries(section: Any, what: str, file: str, read: Callable[[str, Any, str], Any]) -> list[Any]:
    """Return what `read` makes of the entries of a section, which must have one at least."""
    if not isinstance(section, dict) or not section:
        must = "must map at least one name to an entry with topic, type, …"
        raise UserError(f"{file}: {what}s {must}; it is {section!r}")
    for name in section:
        if not isinstance(name, str):
            raise UserError(f"{file}: {what}s has the name {name!r}; give text, in quotes")
    return [read(name, entry, f"{file}: {what} '{name}'") for name, entry in section.items()]


def _type(entry: Any, known: Sequence[str], where: str) -> str:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if kind not in known:
        hint = " (without /msg)" if isinstance(kind, str) and "/msg/" in kind else ""
        raise UserError(f"{where} has type {kind!r}; choose of{hint}: {', '.join(known)}")
    return str(kind)


def _source(name: str, entry: Any, where: str) -> ImageSource | VectorSource:
    if _type(entry, (*IMAGE_TYPES, *VECTOR_TYPES), where) not in IMAGE_TYPES:
        return _vector(name, entry, where)
    return ImageSource(name, **_read(entry, _TYPED, _IMAGE_KEYS, where))


def _vector(name: str, entry: Any, where: str) -> VectorSource:
    _type(entry, VECTOR_TYPES, where)
    return VectorSource(name, **_read(entry, _TYPED | {"fields"}, _SOURCE_KEYS, where))


def _fields(items: Any, where: str) -> tuple[Field, ...]:
    """Return the fields of an entry, of which no two may be the same."""
    if not isinstance(items, list) or not items:
        raise UserError(f"{where} has fields {items!r}; give a list with one field for each value")
    found: dict[str, Field] = {}
    for item in items:
        data = {"field": item} if isinstance(item, str) else item
        name: Any = data.get("field", item) if isinstance(data, dict) else item
        what = f"{where}, field {name!r},"
        values = _read(data, {"field"}, {"scale", "min", "max"}, what)
        low, high = values["min"], values["max"]
        if not low < high:
            raise UserError(f"{what} has min {low:g} and max {high:g}; give a min below the max")
        if name in found:
            raise UserError(f"{where} names field '{name}' twice; give each a field of its own")
        found[name] = Field(name, values["scale"], low, high)
    return tuple(found.values())


def _workspace(entry: Any, where: str) -> Workspace:
    require_keys(entry, {"action", "position", "min", "max"}, set(), where)
    for key in ("min", "max"):
        if not isinstance(entry[key], list) or len(entry[key]) != 3:
            raise UserError(f"{where} has {key} {entry[key]!r}; give a list of x, y and z in m")
    low, high = (
        tuple(number(each, f"{where} has in {key}") for each in entry[key])
        for key in ("min", "max")
    )
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(f"{where} has a min that is not below its max; give both corners in m")
    return Workspace(str(entry["action"]), str(entry["position"]), low, high)


def _action(name: str, entry: Any, where: str) -> ActionSink:
    _type(entry, COMMAND_TYPES, where)
    values = _read(entry, _TYPED | {"fields"}, _ACTION_KEYS, where)
    limit = values.pop("limit")
    limits = (limit,) if isinstance(limit, str) else tuple(limit)
    sink = ActionSink(name, limits=limits, **values)
    _raise_first(where, _action_problems(sink))
    return sink


def _action_problems(sink: ActionSink) -> Iterator[str]:
    kind, size = sink.type, len(sink.fields)
    for key in ("per_second", "smooth"):
        if getattr(sink, key) and kind not in MOTION_TYPES:
            yield f"has {key}, but {kind} is no velocity; leave {key} out"
    usable = [name for name in LIMIT_KINDS if _fits(name, kind)]
    choice = ", ".join(usable) or "none, leave it out"
    if (count := len(sink.limits)) not in (0, 1, size):
        yield f"has {count} limits; give one for the whole part or {size}, one for each field"
    for limit in sink.limits:
        if limit not in usable:
            yield f"has limit '{limit}', which {kind} cannot have; choose of: {choice}"
    if kind in MOTION_TYPES and not sink.limits:
        yield f"moves the robot without a limit; add limit: with one of {choice}"
    each = sink.limits * size if len(sink.limits) == 1 else sink.limits
    for field, limit in zip(sink.fields, each, strict=bool(each)):
        if not _fits(limit, kind, field):
            what = f"field '{field.path}', which is not {LIMIT_KINDS[limit].moves}"
            yield f"has limit '{limit}' for {what}; take a limit of its own for each field"
    for field in sink.fields:
        what, low, high = f"has field '{field.path}'", field.minimum, field.maximum
        if kind not in JOINT_TYPES and (low > -math.inf or high < math.inf):
            yield f"{what} with min or max, which are for joints; leave them out, use limit:"
        bounded = math.isfinite(low) and math.isfinite(high)
        if kind in JOINT_TYPES and not bounded and not sink.limits:
            yield f"{what}, which moves a joint without a limit; add min: and max:, or limit: {choice}"
        if field.path.split(".")[0] == "header":
            yield f"{what}, which is set by the node itself; name a field of the command"
    if kind == "std_msgs/Bool" and any(field.scale != 1.0 for field in sink.fields):
        yield f"has a scale, but {kind} is true or false; leave scale out"


def _fits(limit: str, kind: str, field: Field | None = None) -> bool:
    """Return whether a limit is of the unit of a field, or for None of some field of the type."""
    moves = LIMIT_KINDS[limit].moves
    if kind in JOINT_TYPES:
        return moves == "joints"
    if kind not in MOTION_TYPES:
        return False
    return moves != "joints" and (field is None or f".{moves}." in f".{field.path}")


def _contradictions(contract: RobotContract) -> Iterator[str]:
    types: dict[str, str] = {}
    for entry in (*contract.inputs, *contract.actions):
        if (other := types.setdefault(entry.topic, entry.type)) != entry.type:
            yield f"topic {entry.topic} has two types, {other} and {entry.type}; keep one"
    commands = {sink.topic: sink.name for sink in contract.actions}
    for source in contract.inputs:
        if source.topic in commands:
            yield (
                f"topic {source.topic} feeds '{source.name}' and takes '{commands[source.topic]}'; a "
                "policy must not see its own command as a measurement: name the robot's topic"
            )
    users: dict[tuple[str, str], str] = {}
    for sink in contract.actions:
        for field in sink.fields:
            other = users.setdefault((sink.topic, field.path), sink.name)
            if other != sink.name:
                both = f"actions '{other}' and '{sink.name}' both set '{field.path}'"
                yield f"{both} of {sink.topic}; give each a field of its own"
    for sink in contract.actions:
        for field in sink.fields if sink.limits and sink.type in JOINT_TYPES else ():
            if contract.measurement_of(field.path) is None:
                yield (
                    f"action '{sink.name}' limits the speed of joint '{field.path}', which no observation "
                    f"measures; add the joint to a {JOINT_STATE}, or give it min: and max: in place of limit:"
                )
        if sink.measured:
            yield from _measured_problems(contract, sink)
    if (box := contract.workspace) is not None:
        moved = next((sink for sink in contract.actions if sink.name == box.action), None)
        axes = [] if moved is None else sorted(f".{field.path}"[-9:] for field in moved.fields)
        is_velocity = moved is not None and moved.type in MOTION_TYPES
        if not is_velocity or axes != [".linear.x", ".linear.y", ".linear.z"]:
            yield (
                f"workspace has action '{box.action}'; name an action part whose fields are linear.x, "
                "linear.y and linear.z of a twist"
            )
        position = contract.vector(box.position)
        paths = set() if position is None else {field.path for field in position.fields}
        if not {f"pose.position.{axis}" for axis in "xyz"} <= paths:
            yield (
                f"workspace has position '{box.position}'; name an observation with pose.position.x, "
                "pose.position.y and pose.position.z in the base frame"
            )


def _measured_problems(contract: RobotContract, sink: ActionSink) -> Iterator[str]:
    what = f"action '{sink.name}' has measured '{sink.measured}'"
    source = contract.vector(sink.measured)
    if source is None:
        known = ", ".join(each.name for each in contract.vectors) or "none"
        yield f"{what}; name an observation of numbers: {known}"
        return
    if sink.type not in (*MOTION_TYPES, *JOINT_TYPES):
        yield f"{what}, but {sink.type} is no motion; leave measured out"
    for field in sink.fields:
        joint = contract.measurement_of(field.path)
        is_joint = joint is not None and joint[0] == source
        if not (measured_places(source, field.path) if sink.type in MOTION_TYPES else is_joint):
            yield (
                f"{what}, which does not measure '{field.path}'; a velocity needs itself or its position "
                "there, a turn all four values of the orientation, and a joint its position"
            )


def measured_goals(
    contract: RobotContract, spec: PolicySpec, observation: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[np.float32]:
    """Return the action (A,) that keeps the robot where the observation shows it.

    Velocities are 0, goals of joints their measured positions, or the nearer one of two commands. Goals
    of joints that no observation measures are NaN.
    """
    goals = np.zeros(spec.action_size, np.float32)
    for sink in contract.actions:
        where = spec.action_slices[sink.name]
        joints = zip(range(where.start, where.stop), sink.fields, strict=False)
        for index, field in joints if sink.type in JOINT_TYPES else ():
            goals[index] = math.nan
            if (measured := contract.measurement_of(field.path)) is not None:
                source, place = measured
                value = float(observation[source.name][place]) / source.fields[place].scale
                goals[index] = value / field.scale
    low, high = spec.action_limits
    nearer = np.where(goals >= spec.thresholds, high, low)
    return np.where(spec.binary_mask & np.isfinite(goals), nearer, goals).astype(np.float32)


def goal_sources(contract: RobotContract) -> tuple[VectorSource, ...]:
    """Return the observations that measure where the joints of the action are."""
    paths = [f.path for s in contract.actions if s.type in JOINT_TYPES for f in s.fields]
    found = [contract.measurement_of(path) for path in paths]
    names = {source.name for source, _ in filter(None, found)}
    return tuple(source for source in contract.vectors if source.name in names)


def measured_places(source: VectorSource, path: str) -> tuple[int, ...]:
    """Return the places of an observation that measure the velocity for a command's field.

    path: such as `twist.linear.x`. One place measures that velocity or the position along it, four are
    the orientation x, y, z, w. Empty if nothing in the observation does.
    """
    kind, axis = path.split(".")[-2:]
    turn = [f"orientation.{each}" for each in "xyzw"]
    paths = [f".{field.path}" for field in source.fields]
    for names in ([f"{kind}.{axis}"], [f"position.{axis}"] if kind == "linear" else turn):
        found = [i for name in names for i, each in enumerate(paths) if each.endswith(f".{name}")]
        if len(found) == len(names):
            return tuple(found)
    return ()
