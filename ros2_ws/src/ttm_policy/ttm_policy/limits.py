"""The limits on what a policy may command. They always apply, and bound the numbers that are sent.

`SafetyLimits` bounds an action: a `_PartLimiter` each of its parts, with a `MotionFilter` for speed,
acceleration and jerk and a `_Box` for the workspace. `RobotDescription` adds the limits of the robot's URDF.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from rclpy.node import Node
from std_msgs.msg import String

from ttm.policy.errors import UserError, require_above_0
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    JOINT_TYPES,
    RAMP,
    ActionSink,
    Field,
    RobotContract,
    VectorSource,
    Workspace,
)
from ttm_policy.parameters import LIMIT_KINDS, LIMITS
from ttm_policy.qos import LATCHED

Attributes = Mapping[str, str]
Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Observation = Mapping[str, npt.NDArray[np.generic]]
EPSILON = float(np.finfo(np.float64).eps)
"""What rounding may add to a length, in relation to it."""
DESCRIPTION_TOPIC = "robot_description"
FIRST_S = 5.0
"""How long the robot waits for a description that somebody publishes, in seconds."""
LONGEST = 2_000_000
"""Characters of a description that is read. Those of the largest robots have some 300,000."""
LONGEST_TAG = 100_000
"""Characters of one element's attributes, at most."""
CHUNK = 10_000
"""Characters that are parsed at once. Other threads, such as that of the emergency stop, wait meanwhile."""


@dataclass(frozen=True)
class JointLimit:
    """The range of a joint in rad or m, and its largest speed in rad/s or m/s."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf


NO_LIMIT = JointLimit()


class SafetyLimits:
    """Reduces an action to the bounds of the spec, then what is sent to the limits of the robot.

    Speeds, the workspace and the ranges of joints are bounded always. Acceleration and jerk are bounded from
    tick to tick, except where one of the former demands more, and except for a stop, which is immediate.
    """

    def __init__(
        self,
        contract: RobotContract,
        spec: PolicySpec,
        limits: Mapping[str, float],
        *,
        period_s: float | None = None,
        lasts_s: float | None = None,
    ):
        """limits: a value above 0 for each name in `ttm_policy.parameters.LIMITS`.

        period_s: the time between two commands. lasts_s: how long a command may be in force at most,
        which counts for a workspace. Both are in seconds, and None stands for a tick of the spec.
        """
        self._contract = contract
        self._low, self._high = spec.action_limits
        tick_s = spec.control_dt_s
        self._parts = [
            _PartLimiter(sink, contract, spec, period_s or tick_s, lasts_s or tick_s)
            for sink in contract.actions
            if sink.limits or sink.type in JOINT_TYPES
        ]
        self._motion = [spec.action_slices[name] for name in contract.motion_parts]
        self.set_limits(limits)

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits from the next call of `apply` on. Raises `UserError` unless above 0."""
        require_above_0({name: limits[name] for name in LIMITS})
        for part in self._parts:
            part.limits = {name: float(limits[name]) for name in LIMITS}

    def set_joint_limits(self, joints: Mapping[str, JointLimit]) -> None:
        """Take the limits of a robot's description, in addition to those of the contract.

        Raises `UserError`, and changes nothing, if a joint of the contract is not in the description,
        or if both leave no position for it.
        """
        for sink in self._contract.actions:
            for field in sink.fields if sink.type in JOINT_TYPES else ():
                if field.path not in joints:
                    what = f"joint '{field.path}' of {self._contract.path}"
                    raise UserError(f"{what} is not in robot_description; none of its limits apply")
                limit = joints[field.path]
                if max(field.minimum, limit.lower) >= min(field.maximum, limit.upper):
                    raise UserError(
                        f"joint '{field.path}' may be {field.minimum:g} to {field.maximum:g} in "
                        f"{self._contract.path}, but {limit.lower:g} to {limit.upper:g} in robot_description"
                    )
        for part in self._parts:
            part.joints = dict(joints)

    def apply(
        self,
        values: Vector,
        observation: Observation | None = None,
        *,
        late_s: float = 0.0,
        now_s: float | None = None,
    ) -> Vector:
        """Return the action that may be sent. An action within the limits keeps its bits.

        values: (A,) -> (A,). observation: where the robot is, in the units of the spec; only a workspace and
        limits of joints' speeds need it. late_s: how long ago it was made. Since then the robot has moved on
        by the command before this one, or by several if now_s is given, the time of this command on any
        clock, in seconds. Raises `ArithmeticError` for NaN and infinity.
        """
        if not np.isfinite(values).all():
            raise ArithmeticError(f"the policy's action {values} is not finite; train it again")
        limited = np.clip(values, self._low, self._high)
        for part in self._parts:
            limited[part.where] = part.limit(limited[part.where], observation, late_s, now_s)
        return limited

    def halt(self, topics: Collection[str] | None = None) -> None:
        """Note that all parts, or those sent to `topics`, were stopped: the next motion begins at rest."""
        for part in self._parts:
            if topics is None or part.topic in topics:
                part.halt()

    def stopped(self, values: Vector) -> Vector:
        """Return what remains of a command (A,) when the robot stands still: no motion, the same grip."""
        still = values.copy()
        for where in self._motion:
            still[where] = 0.0
        return still


class _PartLimiter:
    """Bounds the numbers of one action part after `scale` and `per_second`.

    A part that one value drives through several fields is bounded by the strictest of them.
    """

    limits: Mapping[str, float]

    def __init__(
        self,
        sink: ActionSink,
        contract: RobotContract,
        spec: PolicySpec,
        period_s: float,
        lasts_s: float,
    ):
        self.joints: Mapping[str, JointLimit] = {}
        self.where, self.topic = spec.action_slices[sink.name], sink.topic
        size = self.where.stop - self.where.start
        self._period_s, self._tick_s = period_s, spec.control_dt_s
        self._is_position = sink.type in JOINT_TYPES
        # One value for several fields has all fields, else each value has one of its own.
        self._fields = [sink.fields] if size == 1 else [(field,) for field in sink.fields]
        leading = [max(fields, key=lambda field: abs(field.scale)) for fields in self._fields]
        self._gain = np.array([field.scale for field in leading])
        if sink.per_second:
            self._gain = self._gain / self._tick_s
        kinds = [LIMIT_KINDS[name] for name in sink.limits]
        self._groups = [slice(i, i + 1) for i in range(size)]
        if len(kinds) == 1 and not self._is_position:
            self._groups = [slice(0, size)]
        self._kinds = kinds * len(self._groups) if len(kinds) == 1 else kinds
        self._filter = MotionFilter(self._groups, self._period_s)
        self._measured = [contract.measurement_of(field.path) for field in leading]
        self._last: Numbers | None = None
        box = contract.workspace
        here = box and box.action == sink.name
        self._box = _Box(box, contract, leading, lasts_s) if box and here else None
        self._ramp_s = RAMP * self._tick_s if sink.smooth else 0.0

    def halt(self) -> None:
        self._filter.halt()
        self._last = None

    def limit(
        self, values: Vector, observation: Observation | None, late_s: float, now_s: float | None
    ) -> Vector:
        low, high = self._range()
        wanted = np.clip(values.astype(np.float64), low, high)
        if self._kinds:
            start = self._start(observation) if self._is_position else np.zeros(len(wanted))
            scale = self._gain / (self._period_s if self._is_position else 1.0)
            speed = wanted * scale - start / self._period_s
            allowed = self._filter.apply(speed, self._bounds())
            if self._box is not None:
                # While a smooth part changes, its old velocity counts for half of the time.
                ramp_s = self._ramp_s / 2 if late_s else 0.0
                before = self._filter.speed
                way = self._box.way(before, late_s, now_s) + _to_sides(before, ramp_s)
                allowed = self._box.keep_inside(allowed, observation, way)
                if now_s is not None:
                    self._box.sent.append((now_s, allowed))
            self._filter.commanded(allowed)
            moved = (allowed + start / self._period_s) / scale
            wanted = np.where(allowed == speed, wanted, moved)
            # For rounding: no speed that was cut may grow.
            if self._is_position:
                low, high = np.minimum(low, wanted), np.maximum(high, wanted)
            else:
                most = np.where(allowed == speed, np.inf, np.abs(wanted))
                low, high = np.maximum(low, -most), np.minimum(high, most)
            self._last = wanted * self._gain
        return _rounded(wanted, values, low, high)

    def _range(self) -> tuple[Numbers, Numbers]:
        """Return the lowest and the highest value that all fields allow, both (n,)."""
        joints, bounds = self.joints if self._is_position else {}, []
        for field in (field for fields in self._fields for field in fields):
            described = joints.get(field.path, NO_LIMIT)
            low = max(field.minimum, described.lower)
            high = min(field.maximum, described.upper)
            bounds.append(sorted((low / field.scale, high / field.scale)))
        pairs = np.array(bounds).reshape(len(self._fields), -1, 2)  # (values, fields, 2)
        return pairs[:, :, 0].max(axis=1), pairs[:, :, 1].min(axis=1)

    def _bounds(self) -> list[MotionBounds]:
        limits, bounds = self.limits, []
        for kind, group in zip(self._kinds, self._groups, strict=True):
            speed = limits[kind.speed] / (self._tick_s if kind.per_tick else 1.0)
            if self._is_position:
                fields = self._fields[group.start]
                speed = min(speed, *(self.joints.get(f.path, NO_LIMIT).velocity for f in fields))
            bounds.append(MotionBounds(speed, limits[kind.acceleration], limits[kind.jerk]))
        return bounds

    def _start(self, observation: Observation | None) -> Numbers:
        """Return where the joints are (n,): as commanded last, or as measured after standing still."""
        if self._last is None:
            assert observation is not None, "a limit of a joint's speed needs its position"
            self._last = np.array(
                [_read(observation, *source) for source in self._measured if source is not None]
            )
        return self._last


class _Box:
    """Keeps a point within a workspace by its velocity, which may last for `lasts_s`."""

    def __init__(
        self, box: Workspace, contract: RobotContract, fields: list[Field], lasts_s: float
    ):
        self._lasts_s = lasts_s
        axes = ["xyz".index(field.path[-1]) for field in fields]
        self._low, self._high = np.array(box.minimum)[axes], np.array(box.maximum)[axes]
        source = contract.vector(box.position)
        assert source is not None, "contracts are checked when they are read"
        paths = [field.path for field in source.fields]
        self._measured = [(source, paths.index(f"pose.position.{'xyz'[axis]}")) for axis in axes]
        self.sent: deque[tuple[float, Numbers]] = deque()
        """The velocities that were commanded, (3,), and when in seconds."""

    def way(self, before: Numbers, late_s: float, now_s: float | None) -> Numbers:
        """Return how far the point went to low and high sides since it was seen, (2, 3)."""
        if now_s is None:
            return _to_sides(before, late_s)
        seen_s, sent = now_s - late_s, self.sent
        while sent and not seen_s - self._lasts_s <= sent[0][0] <= now_s:
            sent.popleft()
        ends = [*(begun_s for begun_s, _ in sent), now_s][1:]
        way = np.zeros((2, len(before)))
        for (begun_s, velocity), end_s in zip(sent, ends, strict=True):
            last_s = min(end_s, begun_s + self._lasts_s)
            way += _to_sides(velocity, max(0.0, last_s - max(begun_s, seen_s)))
        return way

    def keep_inside(
        self, velocity: Numbers, observation: Observation | None, way: Numbers
    ) -> Numbers:
        """Return the velocity (3,) that does not leave the box while it lasts; outside, it leads back.

        way: (2, 3), how far the point goes from where it was observed before the velocity is in force,
        towards low and high sides. What leads to one side makes no room at the opposite one, since something
        may hold the point back, or start it late.
        """
        assert observation is not None, "a workspace needs the gripper's position"
        position = np.array([_read(observation, *source) for source in self._measured])
        low, high = self._low - (position + way[0]), self._high - (position + way[1])
        low, high = np.minimum(0.0, low / self._lasts_s), np.maximum(0.0, high / self._lasts_s)
        return np.clip(velocity, low, high)


def _to_sides(velocity: Numbers, duration_s: float) -> Numbers:
    """Return how far a velocity (n,) leads in a time, (2, n): what leads down, and what leads up."""
    return np.stack([np.minimum(velocity, 0.0), np.maximum(velocity, 0.0)]) * duration_s


def _read(observation: Observation, source: VectorSource, index: int) -> float:
    return float(observation[source.name][index]) / source.fields[index].scale


def _rounded(wanted: Numbers, values: Vector, low: Numbers, high: Numbers) -> Vector:
    """Return float32 numbers that rounding does not carry over a bound. Unchanged values keep their bits."""
    result = wanted.astype(np.float32)
    result = np.where(result > high, np.nextafter(result, np.float32(-np.inf)), result)
    result = np.where(result < low, np.nextafter(result, np.float32(np.inf)), result)
    return np.where(wanted == values, values, result)


@dataclass(frozen=True)
class MotionBounds:
    """The largest speed, acceleration and jerk of a vector's length, in units per second."""

    speed: float
    acceleration: float = math.inf
    jerk: float = math.inf


class MotionFilter:
    """Bounds the speeds (n,) of one part of the action, which is commanded once in each tick.

    Acceleration and jerk are bounded from tick to tick by planning ahead: the acceleration is never so high
    that the bound of the jerk would not let it end before the wanted speed is reached. Nothing therefore
    overshoots while the wanted speed stays the same. `speed` is what was commanded last.
    """

    def __init__(self, groups: Sequence[slice], period_s: float):
        """groups: slices of the n numbers whose length is bounded together."""
        self._groups, self._period_s = tuple(groups), period_s
        self.speed = np.zeros(max(group.stop for group in self._groups))
        self._acceleration = np.zeros_like(self.speed)

    def apply(self, wanted: Numbers, bounds: Sequence[MotionBounds]) -> Numbers:
        """Return the speeds (n,) within the bounds of each group. What is within them keeps its bits."""
        allowed = wanted.copy()
        for group, most in zip(self._groups, bounds, strict=True):
            allowed[group] = self._step(group, shorten(wanted[group], most.speed), most)
        return allowed

    def commanded(self, speed: Numbers) -> None:
        """Note the speeds (n,) that were commanded in this tick."""
        self._acceleration = (speed - self.speed) / self._period_s
        self.speed = speed.copy()

    def halt(self) -> None:
        self.speed = np.zeros_like(self.speed)
        self._acceleration = np.zeros_like(self._acceleration)

    def _step(self, group: slice, target: Numbers, most: MotionBounds) -> Numbers:
        if math.isinf(most.acceleration) and math.isinf(most.jerk):
            return target
        before, gap = self.speed[group], target - self.speed[group]
        distance = float(np.linalg.norm(gap))
        wanted = gap / self._period_s
        most_acceleration = min(most.acceleration, self._that_ends_in_time(distance, most.jerk))
        acceleration = shorten(wanted, most_acceleration)
        if math.isfinite(most.jerk):
            now = self._acceleration[group]
            change = shorten(acceleration - now, most.jerk * self._period_s)
            acceleration = shorten(now + change, most.acceleration)
        if np.allclose(acceleration, wanted, rtol=1e-12, atol=1e-12):
            return target  # to the bit, which the sum below would not be
        return shorten(before + acceleration * self._period_s, most.speed)

    def _that_ends_in_time(self, distance: float, jerk: float) -> float:
        """Return the largest acceleration that can be brought to 0 within a change of the speed.

        A bounded jerk lets the acceleration a fall by q = jerk * period in each tick. The speed still
        changes by period * (a + (a - q) + (a - 2 q) + …), which must not exceed `distance`.
        """
        if math.isinf(jerk):
            return math.inf
        fall = jerk * self._period_s
        ticks = math.floor((math.sqrt(1 + 8 * distance / (self._period_s * fall)) - 1) / 2)
        return (distance / self._period_s + fall * ticks * (ticks + 1) / 2) / (ticks + 1)


def shorten(vector: Numbers, most: float) -> Numbers:
    """Return a vector of at most the given length. The direction stays the same."""
    length = float(np.linalg.norm(vector))
    if length <= most:
        return vector
    if len(vector) == 1:
        return np.copysign(most, vector)
    return vector * (most / length * (1 - 4 * EPSILON))


class RobotDescription:
    """Listens to the URDF of the robot, and hands the limits of its joints to all of `limits`.

    One that cannot be used is an error in the log. One that is published has to come before the robot moves.
    """

    def __init__(self, node: Node, *limits: SafetyLimits):
        self._node, self._limits, self._waits = node, limits, True
        self._expected_s: float | None = None
        node.create_subscription(String, DESCRIPTION_TOPIC, self._on_description, LATCHED)

    @property
    def problem(self) -> str:
        """Why the robot must not move yet, or an empty text."""
        if not self._waits or not self._node.count_publishers(DESCRIPTION_TOPIC):
            return ""
        now_s = time.monotonic()
        if self._expected_s is None:
            self._expected_s = now_s
        if now_s - self._expected_s < FIRST_S:
            return f"{DESCRIPTION_TOPIC} is published, but has not come yet; its limits are needed"
        self._waits = False
        late = f"{DESCRIPTION_TOPIC} has not come within {FIRST_S:g} s: joints have the contract's limits"
        self._node.get_logger().warning(f"{late} alone; publish it reliable and transient local")
        return ""

    def _on_description(self, message: String) -> None:
        self._waits = False
        try:
            joints = read_joint_limits(message.data)
            for limits in self._limits:
                limits.set_joint_limits(joints)
        except UserError as error:
            self._node.get_logger().error(str(error))
        else:
            self._node.get_logger().info(f"limits of the joints are those of {DESCRIPTION_TOPIC}")


def read_joint_limits(description: str) -> Mapping[str, JointLimit]:
    """Return the limit of each joint of a URDF, as `robot_description` has it.

    A continuous joint has no range, and a fixed one is left out. Raises `UserError` if the text is no URDF,
    if it is longer than `LONGEST`, or if a limit is no number.
    """
    if len(description) > LONGEST:
        count = len(description)
        raise UserError(f"robot_description has {count} characters; at most {LONGEST} are read")
    if "<!DOCTYPE" in description:  # a few entities can stand for gigabytes
        raise UserError("robot_description has a <!DOCTYPE>, which no URDF needs; remove it")
    try:
        robot = _parse(description)
    except ElementTree.ParseError as error:
        raise UserError(f"robot_description is no URDF ({error}); publish a URDF") from error
    if robot.first != "robot":
        raise UserError(f"robot_description is no URDF: its first element is <{robot.first}>")
    return {
        str(joint.get("name")): _limit(joint, limits[0] if limits else None)
        for joint, limits in robot.joints
        if joint.get("type") not in (None, "fixed")
    }


class _Robot:
    """What is read of a URDF, as a target of the XML parser: a tree takes long to make and to throw away."""

    def __init__(self) -> None:
        self.joints: list[tuple[Attributes, list[Attributes]]] = []
        """The attributes of each joint, and those of its limits."""
        self.first = ""
        """The name of the first element."""
        self._open: list[list[Attributes] | None] = [None]
        """For each element that has not ended, the limits of the joint that it is, or None."""

    def start(self, tag: str, attributes: Attributes) -> None:
        self.first = self.first or tag
        if tag == "limit" and (limits := self._open[-1]) is not None:
            limits.append(attributes)
        self._open.append([] if tag == "joint" else None)
        if (own := self._open[-1]) is not None:
            self.joints.append((attributes, own))

    def end(self, tag: str) -> None:
        self._open.pop()

    def close(self) -> _Robot:
        return self


def _parse(text: str) -> _Robot:
    """Parse XML piece by piece, since the parser lets no other thread run while it has a piece."""
    parser = ElementTree.XMLParser(target=_Robot())
    tag_begin = 0
    for begin in range(0, len(text), CHUNK):
        piece = text[begin : begin + CHUNK]
        if ">" in piece:
            tag_begin = begin
        elif begin - tag_begin > LONGEST_TAG:  # a tag is parsed at once when it ends
            raise UserError(f"robot_description: more than {LONGEST_TAG} characters without a '>'")
        parser.feed(piece)
    return cast(_Robot, parser.close())


def _limit(joint: Attributes, limit: Attributes | None) -> JointLimit:
    if limit is None:
        return NO_LIMIT
    what, joint_name = "robot_description has", f"joint '{joint.get('name')}'"

    def number(key: str, default: float) -> float:
        text = limit.get(key, str(default))
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if math.isnan(found):
            raise UserError(f"{what} {key}={text!r} for {joint_name}; give a number")
        return found

    velocity = number("velocity", math.inf) or math.inf  # 0 stands for an unknown one in many files
    if velocity < 0:
        raise UserError(f"{what} velocity {velocity:g} for {joint_name}; give 0 or more")
    if joint.get("type") == "continuous":
        return JointLimit(velocity=velocity)
    lower, upper = number("lower", 0.0), number("upper", 0.0)
    if lower > upper:
        raise UserError(f"{what} lower {lower:g} above upper {upper:g} for {joint_name}")
    return JointLimit(lower, upper, velocity)
