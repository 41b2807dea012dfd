"""What the motion of a hand does, as a section of the file of controls says it.

pose:
  topic: hand_pose
  clutch: button 4
  axes: [-z, -x, y]
  scale: 1.0
  turn_scale: 1.0
  translation: arm_translation
  rotation: arm_rotation
  drives: [{part: gripper, value: 0, plus: button 1, minus: button 0, dead_man: button 4}]
leader:
  topic: leader/joint_states
  clutch: button 4
  scale: 1.0
  joints: {elbow: leader_elbow}
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from ttm.policy.errors import UserError, printable
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    number,
    require_keys,
    topic_problem,
)
from ttm_policy.messages import rotation_between
from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import (
    ControlMap,
    Controls,
    Vector,
    controls_of,
    default_gamepad,
    is_joy,
    most_speed,
    print_controls,
    section_of,
)
from ttm_policy.teleop.gamepad import Gamepad, nothing_from
from ttm_policy.teleop.source import Cockpit, Wish

Hand = Literal["pose", "leader"]
HANDS: tuple[Hand, ...] = get_args(Hand)
"""The devices that have a section with a clutch."""
AXES = ("x", "y", "z")
_COMMON = {"topic", "clutch", "scale", "drives", "gives_back", "dead_zone"}
_KEYS: Mapping[Hand, set[str]] = {
    "pose": {*_COMMON, "axes", "turn_scale", "translation", "rotation"},
    "leader": {*_COMMON, "joints"},
}


@dataclass(frozen=True)
class HandMap:
    """The topic of a hand, its clutch, and what its motion does.

    `clutch` is a button or a trigger of the topic `joy`, such as `button 4`, or the name of a topic of type
    `std_msgs/Bool`. `controls` are the buttons and sticks of the topic `joy` that drive besides.
    """

    topic: str
    clutch: str
    controls: ControlMap
    scale: float = 1.0
    """The robot moves so many times as far as the hand."""
    turn_scale: float = 1.0
    """It turns so many times as far."""
    axes: tuple[str, str, str] = AXES
    """Which axes of the hand's frame are forward, left and up of the robot, such as `-z`."""
    translation: str = ""
    """The part of the action that the hand moves; empty for none."""
    rotation: str = ""
    """The part that it turns; empty for none."""
    joints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Joint of the robot -> joint of the leader, or -joint. Joints that are not named have the same name."""

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """(3, 3), from a motion in the hand's frame to that of the robot."""
        found = np.zeros((3, 3))
        for row, axis in enumerate(self.axes):
            found[row, AXES.index(axis[-1])] = -1.0 if axis[0] == "-" else 1.0
        return found


def read_hand(path: str, device: Hand, default: HandMap, spec: PolicySpec) -> HandMap:
    """Return the section of a device; what it does not name is that of `default`.

    Raises `UserError` that names the faulty entry.
    """
    found = section_of(path, device)
    if found is None:
        return default
    entry, where = found
    require_keys(entry, set(), _KEYS[device], where)
    own = {key: value for key, value in entry.items() if key in _READERS}
    given: dict[str, Any] = {key: _READERS[key](value, where) for key, value in own.items()}
    buttons = {key: entry[key] for key in ("drives", "gives_back", "dead_zone") if key in entry}
    given["controls"] = controls_of(buttons, "gamepad", spec, where, default.controls)
    for part in ("translation", "rotation"):
        _require_part(given.get(part, ""), spec, f"{where} has {part}")
    return HandMap(**{**vars(default), **given})


def print_hand(hand: HandMap, device: Hand, spec: PolicySpec) -> str:
    """Return the section as the file has it."""
    lines = [f"{device}:", f"  topic: {hand.topic}", f"  clutch: {hand.clutch}"]
    lines += [f"  scale: {hand.scale:g}"]
    if device == "pose":
        lines += [f"  turn_scale: {hand.turn_scale:g}", f"  axes: [{', '.join(hand.axes)}]"]
        lines += [f"  {key}: {part}" for key, part in _parts(hand).items() if part]
    elif hand.joints:
        lines += [f"  joints: {{{', '.join(f'{a}: {b}' for a, b in hand.joints.items())}}}"]
    return "\n".join(lines + print_controls(hand.controls, device, spec).splitlines()[1:])


def _parts(hand: HandMap) -> dict[str, str]:
    return {"translation": hand.translation, "rotation": hand.rotation}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or value != "".join(value.split()):
        raise UserError(f"{where} names {value!r}; give a name without spaces")
    return value


def _clutch(value: Any, where: str) -> str:
    text = value if isinstance(value, str) else ""
    is_button = is_joy(text) and not text.startswith("axis")
    is_misspelt = re.fullmatch(r"(axis|button|trigger)[\W_]?\d+", text, re.IGNORECASE) is not None
    if is_button or not (is_misspelt or topic_problem(text)):
        return text
    raise UserError(
        f"{where} has clutch {value!r}; give a button such as button 4, or a topic of std_msgs/Bool"
    )


def _above_0(key: str, value: Any, where: str) -> float:
    found = number(value, f"{where} has {key}")
    if not 0 < found < float("inf"):
        raise UserError(f"{where} has {key} {found:g}; give a number above 0")
    return found


def _axes(value: Any, where: str) -> tuple[str, ...]:
    names = [str(axis) for axis in value] if isinstance(value, list) else []
    if sorted(name.removeprefix("-") for name in names) != list(AXES):
        raise UserError(
            f"{where} has axes {value!r}; give x, y and z once each, such as [-z, -x, y]"
        )
    return tuple(names)


def _joints(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and name for pair in value.items() for name in pair
    ):
        raise UserError(
            f"{where} has joints {value!r}; give the leader's joint for each of the robot"
        )
    return value


def _require_part(part: str, spec: PolicySpec, what: str) -> None:
    known = [each.name for each in spec.actions]
    if part and part not in known:
        raise UserError(f"{what} '{part}'; the action has: {', '.join(known)}")


_READERS: Mapping[str, Any] = {
    "topic": _text,
    "clutch": _clutch,
    "scale": partial(_above_0, "scale"),
    "turn_scale": partial(_above_0, "turn_scale"),
    "axes": _axes,
    "translation": _text,
    "rotation": _text,
    "joints": _joints,
}


# What a tracked hand has moved, and how that becomes motion of the robot. It uses no ROS.
#
# The hand's motion while its clutch is held is owed to the robot, which gets it spread over `SPREAD_S`. What
# the robot cannot do, since its limits are lower, is owed for at most `LONGEST_LAG_S` of its fastest motion,
# so
# that it stands still soon after the hand.

Numbers = npt.NDArray[np.float64]

JUMP_M, JUMP_RAD = 0.15, 0.6
"""No hand moves or turns further between two messages of a tracker. Farther is a lost target."""
SPREAD_S = 0.1
"""What a hand has moved is caught up with this time constant."""
LONGEST_LAG_S = 0.3


@dataclass(frozen=True)
class Pose:
    """Where a hand is: position (3,) in m and unit quaternion (4,), x y z w."""

    position: Numbers
    orientation: Numbers

    @classmethod
    def of(cls, position: npt.ArrayLike, quaternion: npt.ArrayLike) -> Pose | None:
        """Return a pose; None if it is not finite, or the quaternion has no length of about 1."""
        place, turn = np.asarray(position, np.float64), np.asarray(quaternion, np.float64)
        length = float(np.linalg.norm(turn))
        if not np.isfinite(place).all() or not 0.5 < length < 2.0:
            return None
        return cls(place, turn / length)

    def motion_to(self, other: Pose) -> tuple[Numbers, Numbers]:
        """Return displacement (3,) and rotation vector (3,), both in the frame of the poses."""
        return other.position - self.position, rotation_between(self.orientation, other.orientation)


def is_jump(displacement: Numbers, rotation: Numbers) -> bool:
    """Return whether a motion between two messages is none of a hand."""
    return bool(np.linalg.norm(displacement) > JUMP_M or np.linalg.norm(rotation) > JUMP_RAD)


class OwedMotion:
    """The motion along three axes that the robot has not been told yet.

    most: the largest speed, above 0; inf for none.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._owed: Numbers = np.zeros(3)

    def add(self, motion: Numbers) -> None:
        """Owe a motion, (3,)."""
        self._owed = _shortened(self._owed + motion, self._most * LONGEST_LAG_S)

    def take(self, seconds: float) -> Numbers:
        """Return the speed (3,) for the next so many seconds, in which that motion is done."""
        speed = _shortened(self._owed / max(SPREAD_S, seconds), self._most)
        self._owed = self._owed - speed * seconds
        return speed

    def forget(self) -> None:
        """Owe nothing."""
        self._owed = np.zeros(3)


def _shortened(vector: Numbers, most: float) -> Numbers:
    """Return a vector of the same direction that is no longer than `most`."""
    length = float(np.linalg.norm(vector))
    return vector if length <= most else vector * (most / length)


# What a tracked hand and a leader arm share: a clutch, buttons, and a stop for jumps.

JOY = "joy"
TIMEOUT_S = 0.3
"""The longest silence of the hand and of its clutch."""
LONGEST_STEP_S = 0.1
"""A motion goes on for at most so long at once, however late it is asked for."""


class Clutch:
    """The button that connects hand and robot: one of the topic `joy`, or a topic of its own."""

    def __init__(self, node: Node, name: str, pad: Gamepad) -> None:
        self._node, self._name, self._pad = node, name, pad
        self._button = name if is_joy(name) else ""
        self._pressed, self._heard_s = False, -float("inf")
        self._subscription = (
            None if self._button else node.create_subscription(Bool, name, self._receive, SENSOR)
        )

    def _receive(self, message: Bool) -> None:
        self._pressed, self._heard_s = message.data, time.monotonic()

    @property
    def is_held(self) -> bool:
        """Whether it was pressed when it was heard last."""
        return self._pad.state(self._button) > 0.5 if self._button else self._pressed

    @property
    def heard_s(self) -> float:
        """When it was heard last, on the steady clock."""
        return self._pad.state.heard_s if self._button else self._heard_s

    @property
    def unheard(self) -> str:
        """That nothing has come from its own topic, or an empty text."""
        missing = not self._button and self._heard_s < 0
        return nothing_from(self._node, self._name, Bool) if missing else ""

    def close(self) -> None:
        """Destroy the subscription."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)


class HandSource(ABC):
    """A `ttm_policy.teleop.source.Source` that follows a hand while its clutch is held.

    What is no motion of a hand, such as the jump of a tracker that has lost its target, ends the
    connection until the clutch is pressed anew.
    """

    timeout_s = TIMEOUT_S

    def __init__(
        self, node: Node, name: str, topic: tuple[Any, str], clutch: str, controls: Controls
    ) -> None:
        """topic: its type and its name. controls: of the buttons and sticks that drive besides."""
        self.name, self._node, self._controls = name, node, controls
        self.problem, self._topic = "", topic
        self._pad = Gamepad(controls, node, JOY, clutch if is_joy(clutch) else "")
        self._clutch = Clutch(node, clutch, self._pad)
        self._heard_s = self._asked_s = -float("inf")
        self._subscription = node.create_subscription(
            *topic, lambda message: self.take(message, time.monotonic()), SENSOR
        )

    @property
    def unheard(self) -> str:
        """What of hand, clutch and `joy` was never heard."""
        kind, topic = self._topic
        hand = nothing_from(self._node, topic, kind) if self._heard_s < 0 else ""
        return "; ".join(filter(None, (hand, self._clutch.unheard, self._pad.unheard)))

    def take(self, message: Any, now_s: float) -> None:
        """Take a message of the hand that was received at a time on the steady clock."""
        silent, self._heard_s = now_s - self._heard_s > self.timeout_s, now_s
        if silent or not self._clutch.is_held:
            self.let_go()
        try:
            self.follow(message)
        except ValueError as error:
            self.let_go()
            if self._clutch.is_held:
                self.problem = f"{self.name} {error}; press its clutch anew"

    def wish(self, now_s: float) -> Wish | None:
        """Return what the hand does while its clutch is held, and what the buttons ask for."""
        step_s, self._asked_s = min(now_s - self._asked_s, LONGEST_STEP_S), now_s
        buttons = self._pad.wish(now_s)
        if not self._clutch.is_held:
            self.problem = ""
            self.let_go()
        if not self._clutch.is_held or self.problem:
            return buttons
        buttons = buttons or Wish(self._controls.still, now_s)
        values = buttons.values.copy()
        heard_s = min(self._heard_s, self._clutch.heard_s, buttons.stamp_s)
        if now_s - heard_s > self.timeout_s:
            self.let_go()
        self.move(values, step_s)
        return Wish(values, heard_s)

    @abstractmethod
    def follow(self, message: Any) -> None:
        """Take the motion since the message before.

        Raises `ValueError`, which says what it does, if this is no motion of a hand.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Forget where the hand was: the next message begins a motion."""

    @abstractmethod
    def move(self, values: Vector, step_s: float) -> None:
        """Set what the hand moves in a wish (A,). step_s: how long the wish is in force."""

    def gives_back(self) -> bool:
        """Return whether the button for it was pressed since the last call."""
        return self._pad.gives_back()

    def close(self) -> None:
        """Destroy all subscriptions."""
        self._pad.close()
        self._clutch.close()
        self._node.destroy_subscription(self._subscription)


# Drives by a leader arm: the joints of an arm that a person moves by hand.


@dataclass(frozen=True)
class Joint:
    """A value of the action that is the goal of a joint, and the leader's joint that drives it."""

    place: int
    leader: str
    factor: float
    """From rad, or m of a joint that slides, to the unit of the value."""


def default_leader(cockpit: Cockpit) -> HandMap:
    """Return what a leader arm drives by the contract: all goals of joints; the rest by buttons."""
    buttons = default_gamepad(cockpit.contract, cockpit.spec, cockpit.limits)
    led = {joint.place for joint in _leader_arm_joints(cockpit, {})}
    starts = {name: where.start for name, where in cockpit.spec.action_slices.items()}
    others = tuple(d for d in buttons.drives if starts[d.part] + d.value not in led)
    controls = ControlMap(others, buttons.gives_back, buttons.dead_zone)
    return HandMap("leader/joint_states", "button 4", controls)


def _leader_arm_joints(cockpit: Cockpit, names: Mapping[str, str]) -> list[Joint]:
    """Return all goals of joints but those of two states, which have buttons.

    names: joint of the robot -> joint of the leader, where these differ, with - before it if it turns the
    other way. Raises `UserError` if there are none, or for a joint that the action does not have.
    """
    spec, found, known = cockpit.spec, [], set()
    for sink in cockpit.contract.actions:
        where = spec.action_slices[sink.name]
        fields = sink.fields[: where.stop - where.start] if sink.type in JOINT_TYPES else ()
        for place, field in enumerate(fields, where.start):
            if not spec.binary_mask[place]:
                known.add(field.path)
                leader = names.get(field.path, field.path)
                sign = -1 if leader.startswith("-") else 1
                found.append(Joint(place, leader.removeprefix("-"), sign / field.scale))
    if unknown := sorted(names.keys() - known):
        raise UserError(
            f"the leader arm drives joint '{unknown[0]}'; the action has: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    if not found:
        raise UserError(
            f"{cockpit.contract.path} has no action with goals of joints, which a leader arm drives; take "
            "source pose for velocities of a gripper"
        )
    return found


class LeaderArm(HandSource):
    """Moves the joints as far from where they are as the leader's joints have moved, scaled."""

    def __init__(self, node: Node, cockpit: Cockpit, hand: HandMap) -> None:
        """Raises `UserError` if the action has no such joints."""
        self._joints = _leader_arm_joints(cockpit, hand.joints)
        self._places = [joint.place for joint in self._joints]
        self._factors = np.array([hand.scale * joint.factor for joint in self._joints])
        self._goals = cockpit.goals
        controls = cockpit.controls(hand.controls)
        super().__init__(node, "leader arm", (JointState, hand.topic), hand.clutch, controls)
        self._now: Vector | None = None
        self._start: tuple[Vector, Vector] | None = None

    def follow(self, message: JointState) -> None:
        """Note where the leader's joints are."""
        angles = dict(zip(message.name, message.position, strict=False))
        if missing := [joint.leader for joint in self._joints if joint.leader not in angles]:
            raise ValueError(
                f"does not tell joint '{missing[0]}', but {printable(', '.join(angles), 500) or 'none'}"
            )
        names = list(message.name)
        if twice := [joint.leader for joint in self._joints if names.count(joint.leader) > 1]:
            raise ValueError(f"tells joint '{twice[0]}' twice in one message")
        before, self._now = self._now, np.array([angles[joint.leader] for joint in self._joints])
        if not all(map(math.isfinite, self._now)):
            raise ValueError("tells joints that are not finite")
        if before is not None and (step := np.abs(self._now - before).max()) > JUMP_RAD:
            raise ValueError(f"has jumped by {step:.1f} rad")

    def let_go(self) -> None:
        """Forget where both arms were."""
        self._now = self._start = None

    def move(self, values: Vector, step_s: float) -> None:
        """Set the goals of the joints; they stay until both arms are known."""
        goals = self._goals.values[self._places]
        if self._now is None:
            return
        if self._start is None and np.isfinite(goals).all():
            self._start = self._now.copy(), goals.copy()
        if self._start is not None:
            leader, robot = self._start
            values[self._places] = robot + self._factors * (self._now - leader)


# Drives by the pose of a tracked hand, such as a controller of virtual reality.

LINEAR, ANGULAR = "linear", "angular"


@dataclass(frozen=True)
class Axis:
    """A value of the action that one axis of a motion drives."""

    place: int
    axis: int
    factor: float
    """From m/s or rad/s to the unit of the value."""
    most: float
    """The largest speed in m/s or rad/s; inf for any."""


def axes_of(cockpit: Cockpit, part: str, moves: str) -> tuple[Axis, ...]:
    """Return the values of a part that move or turn the robot. moves: `linear` or `angular`.

    Raises `UserError` if the part has none.
    """
    spec = cockpit.spec
    sink = next(each for each in cockpit.contract.actions if each.name == part)
    found = []
    for value, field in enumerate(sink.fields if sink.type in MOTION_TYPES else ()):
        if f".{moves}." in f".{field.path}":
            tick_s = spec.control_dt_s if sink.per_second else 1.0
            factor = tick_s / field.scale
            most = most_speed(sink, value, field, spec, cockpit.limits) / abs(factor)
            place = spec.action_slices[part].start + value
            found.append(Axis(place, AXES.index(field.path[-1]), factor, most))
    if not found:
        raise UserError(
            f"'{part}' of {cockpit.contract.path} has no field such as {moves}.x, so that a hand cannot "
            "drive it; name another part in the file of controls"
        )
    return tuple(found)


def default_pose(cockpit: Cockpit) -> HandMap:
    """Return what a hand moves by the contract: the parts with all three axes, and the rest by buttons.

    Raises `UserError` if there is none.
    """
    translation, rotation = (_whole(cockpit.contract, moves) for moves in (LINEAR, ANGULAR))
    if not translation and not rotation:
        raise UserError(
            f"{cockpit.contract.path} has no action with linear.x, linear.y and linear.z, or angular ones; "
            "a hand drives the velocity of a gripper: take source leader for goals of joints"
        )
    buttons = default_gamepad(cockpit.contract, cockpit.spec, cockpit.limits)
    driven = (translation, rotation)
    others = tuple(drive for drive in buttons.drives if drive.part not in driven)
    controls = ControlMap(others, buttons.gives_back, buttons.dead_zone)
    return HandMap("hand_pose", "button 4", controls, translation=translation, rotation=rotation)


def _whole(contract: RobotContract, moves: str) -> str:
    def has_all(sink: ActionSink) -> bool:
        paths = [f".{field.path}" for field in sink.fields]
        return all(any(p.endswith(f".{moves}.{axis}") for p in paths) for axis in AXES)

    sinks = (each for each in contract.actions if each.type in MOTION_TYPES)
    return next((sink.name for sink in sinks if has_all(sink)), "")


class PoseHand(HandSource):
    """Moves and turns the gripper as a hand moves and turns, scaled."""

    def __init__(self, node: Node, cockpit: Cockpit, hand: HandMap) -> None:
        """Raises `UserError` if the parts that it drives have no such values."""
        controls = cockpit.controls(hand.controls)
        super().__init__(node, "hand", (PoseStamped, hand.topic), hand.clutch, controls)
        self._linear = axes_of(cockpit, hand.translation, LINEAR) if hand.translation else ()
        self._angular = axes_of(cockpit, hand.rotation, ANGULAR) if hand.rotation else ()
        self._moved = OwedMotion(min((each.most for each in self._linear), default=np.inf))
        self._turned = OwedMotion(min((each.most for each in self._angular), default=np.inf))
        self._matrix = hand.matrix
        self._scale = hand.scale
        # A mirrored frame turns the other way.
        self._turn_scale = hand.turn_scale * float(np.linalg.det(hand.matrix))
        self._before: Pose | None = None

    def follow(self, message: PoseStamped) -> None:
        """Owe the robot the motion since the message before."""
        at, to = message.pose.position, message.pose.orientation
        pose = Pose.of((at.x, at.y, at.z), (to.x, to.y, to.z, to.w))
        before, self._before = self._before, pose
        if pose is None:
            raise ValueError("has a pose that is not finite, or whose quaternion has no length")
        if before is None:
            return
        displacement, rotation = before.motion_to(pose)
        if is_jump(displacement, rotation):
            raise ValueError(
                f"has jumped by {np.linalg.norm(displacement):.2f} m and "
                f"{np.linalg.norm(rotation):.1f} rad"
            )
        self._moved.add(self._scale * self._matrix @ displacement)
        self._turned.add(self._turn_scale * self._matrix @ rotation)

    def let_go(self) -> None:
        """Forget where the hand was, and what it moved."""
        self._before = None
        self._moved.forget()
        self._turned.forget()

    def move(self, values: Vector, step_s: float) -> None:
        """Set the speeds of the gripper."""
        for owed, axes in ((self._moved, self._linear), (self._turned, self._angular)):
            speed = owed.take(step_s)
            for each in axes:
                values[each.place] = speed[each.axis] * each.factor
