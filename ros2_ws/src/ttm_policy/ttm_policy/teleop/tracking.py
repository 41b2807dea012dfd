"""The robot follows a tracked hand or a leader arm while a clutch is held.

A file of controls has a section for either; what it does not name follows from the contract:

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

import math
import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool

from ttm.policy.errors import UserError, printable
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import JOINT_TYPES, MOTION_TYPES, number, require_keys, topic_problem
from ttm_policy.messages import rotation_between
from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import (
    LONGEST_STEP_S,
    ControlMap,
    Controls,
    controls_of,
    default_gamepad,
    is_joy,
    most_speed,
    print_controls,
    section_of,
)
from ttm_policy.teleop.devices import TIMEOUT_S, Gamepad, JoyState, nothing_from
from ttm_policy.teleop.source import Source, TeleopContext, Vector, Wish

Numbers = npt.NDArray[np.float64]
Device = Literal["pose", "leader"]
AXES = ("x", "y", "z")
BUTTON_KEYS = {"drives", "gives_back", "dead_zone"}
_KEYS: Mapping[Device, tuple[str, ...]] = {
    "pose": ("topic", "clutch", "scale", "turn_scale", "axes", "translation", "rotation"),
    "leader": ("topic", "clutch", "scale", "joints"),
}


@dataclass(frozen=True)
class TrackingMap:
    """The topic of a tracked hand or a leader arm, its clutch, and what its motion does.

    `clutch` is a button or a trigger of the topic `joy`, such as `button 4`, or the name of a topic of type
    `std_msgs/Bool`. `controls` are the buttons and sticks of the topic `joy` that drive besides.
    """

    topic: str
    clutch: str
    controls: ControlMap
    scale: float = 1.0
    """The robot moves so many times as far."""
    turn_scale: float = 1.0
    """It turns so many times as far."""
    axes: tuple[str, str, str] = AXES
    """Which axes of the hand's frame are forward, left and up of the robot, such as `-z`."""
    translation: str = ""
    """The part of the action that the hand moves; empty for none."""
    rotation: str = ""
    """The part that it turns; empty for none."""
    joints: Mapping[str, str] = field(default_factory=dict)
    """Joint of the robot -> joint of the leader, or -joint. Joints that are not named have the same name."""

    @property
    def matrix(self) -> Numbers:
        """(3, 3), from a motion in the hand's frame to that of the robot."""
        found = np.zeros((3, 3))
        for row, axis in enumerate(self.axes):
            found[row, AXES.index(axis[-1])] = -1.0 if axis[0] == "-" else 1.0
        return found


def read_tracking(path: str, device: Device, default: TrackingMap, spec: PolicySpec) -> TrackingMap:
    """Return the section of a device, or `default` where it names nothing. Raises `UserError`."""
    found = section_of(path, device)
    if found is None:
        return default
    entry, where = found
    require_keys(entry, set(), BUTTON_KEYS.union(_KEYS[device]), where)
    given = {key: _read(key, value, where) for key, value in entry.items() if key in _KEYS[device]}
    buttons = {key: value for key, value in entry.items() if key in BUTTON_KEYS}
    controls = controls_of(buttons, "gamepad", spec, where, default.controls)
    known = [part.name for part in spec.actions]
    for key in ("translation", "rotation"):
        if given.get(key, known[0]) not in known:
            raise UserError(f"{where} has {key} '{given[key]}'; the action has: {', '.join(known)}")
    return replace(default, controls=controls, **given)


def _read(key: str, value: Any, where: str) -> Any:
    """Return the value of a key of a section. Raises `UserError` for one that cannot be."""
    if key in ("scale", "turn_scale"):
        found = number(value, f"{where} has {key}")
        if not 0 < found < math.inf:
            raise UserError(f"{where} has {key} {found:g}; give a number above 0")
        return found
    if key == "axes":
        axes = tuple(map(str, value)) if isinstance(value, list) else ()
        if sorted(axis.removeprefix("-") for axis in axes) == list(AXES):
            return axes
        give = "x, y and z once each, such as [-z, -x, y]"
    elif key == "joints":
        pairs = value.items() if isinstance(value, dict) else [("", "")]
        if all(isinstance(name, str) and name for pair in pairs for name in pair):
            return value
        give = "the leader's joint for each of the robot"
    elif key == "clutch":
        text = value if isinstance(value, str) else ""
        is_button = is_joy(text) and not text.startswith("axis")
        is_like_one = re.fullmatch(r"(axis|button|trigger)[\W_]?\d+", text, re.IGNORECASE)
        if is_button or not (is_like_one or topic_problem(text)):
            return text
        give = "a button such as button 4, or a topic of std_msgs/Bool"
    else:
        if isinstance(value, str) and value and value == "".join(value.split()):
            return value
        give = "a name without spaces"
    raise UserError(f"{where} has {key} {value!r}; give {give}")


def print_tracking(tracking: TrackingMap, device: Device) -> str:
    """Return the section as the file has it."""
    others = {key: getattr(tracking, key) for key in _KEYS[device]}
    return print_controls(tracking.controls, device, **others)


class TrackingSource(Source):
    """Follows a device while its clutch is held.

    What is no motion of a hand, such as the jump of a tracker that has lost its target, ends the
    connection until the clutch is pressed again.
    """

    timeout_s = TIMEOUT_S
    kind: Any
    """The type of the topic's messages."""

    def __init__(self, node: Node, context: TeleopContext, tracking: TrackingMap) -> None:
        self._node, self._topic = node, tracking.topic
        self._controls = Controls(tracking.controls, context)
        self._heard_s = self._asked_s = -math.inf
        node.create_subscription(self.kind, self._topic, self._receive, SENSOR)
        clutch = tracking.clutch
        self._clutch_topic = "" if is_joy(clutch) else clutch
        self._pad = Gamepad(self._controls, node, "" if self._clutch_topic else clutch)
        self._clutch, self._clutch_button = self._pad.state, clutch
        if self._clutch_topic:  # a pad of one button
            self._clutch, self._clutch_button = JoyState(), "button 0"
            node.create_subscription(Bool, clutch, self._receive_clutch, SENSOR)

    def _receive(self, message: Any) -> None:
        self.take(message, time.monotonic())

    def _receive_clutch(self, message: Bool) -> None:
        self._clutch.take(Joy(buttons=[int(message.data)]), time.monotonic())

    @property
    def _is_held(self) -> bool:
        return self._clutch(self._clutch_button) > 0.5

    @property
    def unheard(self) -> str:
        """What of device, clutch and `joy` was never heard."""
        needed = [(self._heard_s, self._topic, self.kind)]
        if self._clutch_topic:
            needed.append((self._clutch.heard_s, self._clutch_topic, Bool))
        found = [nothing_from(self._node, *topic) for heard_s, *topic in needed if heard_s < 0]
        return "; ".join(filter(None, (*found, self._pad.unheard)))

    def take(self, message: Any, now_s: float) -> None:
        """Take a message of the device that was received at a time on the steady clock."""
        silent, self._heard_s = now_s - self._heard_s > self.timeout_s, now_s
        if silent or not self._is_held:
            self._let_go()
        try:
            self._follow(message)
        except ValueError as error:
            self._let_go()
            if self._is_held:
                self.problem = f"{self.name} {error}; press its clutch again"

    def wish(self, now_s: float) -> Wish | None:
        """Return what the device does while its clutch is held, and what the buttons ask for."""
        step_s, self._asked_s = min(now_s - self._asked_s, LONGEST_STEP_S), now_s
        buttons = self._pad.wish(now_s)
        if not self._is_held:
            self.problem = ""
            self._let_go()
        if not self._is_held or self.problem:
            return buttons
        buttons = buttons or Wish(self._controls.still, now_s)
        values = buttons.values.copy()
        heard_s = min(self._heard_s, self._clutch.heard_s, buttons.stamp_s)
        if now_s - heard_s > self.timeout_s:
            self._let_go()
        self._move(values, step_s)
        return Wish(values, heard_s)

    @abstractmethod
    def _follow(self, message: Any) -> None:
        """Take the motion since the last message. Raises `ValueError` if this is no motion of a hand."""

    @abstractmethod
    def _let_go(self) -> None:
        """Forget where the device was: the next message begins a motion."""

    @abstractmethod
    def _move(self, values: Vector, step_s: float) -> None:
        """Set what the device moves in a wish (A,). step_s: how long the wish is in force."""

    def gives_back(self) -> bool:
        return self._pad.gives_back()


def default_leader(context: TeleopContext) -> TrackingMap:
    """Return what a leader arm drives by the contract: all goals of joints; the rest by buttons."""
    buttons, slices = default_gamepad(context), context.spec.action_slices
    led = _leader_joints(context, {})
    others = tuple(d for d in buttons.drives if slices[d.part].start + d.value not in led)
    return TrackingMap("leader/joint_states", "button 4", replace(buttons, drives=others))


Joints = dict[int, tuple[str, float]]
"""Place of the goal of a joint -> the leader's joint, and the factor from its rad or m."""


def _leader_joints(context: TeleopContext, names: Mapping[str, str]) -> Joints:
    """Return the leader's joints for all goals but those of two states, which have buttons.

    names: as `TrackingMap.joints`. Raises `UserError`.
    """
    spec, found, known = context.spec, {}, set()
    for sink in (each for each in context.contract.actions if each.type in JOINT_TYPES):
        where = spec.action_slices[sink.name]
        for place, joint in zip(range(where.start, where.stop), sink.fields, strict=False):
            if not spec.binary_mask[place]:
                known.add(joint.path)
                leader = names.get(joint.path, joint.path)
                sign = -1 if leader.startswith("-") else 1
                found[place] = leader.removeprefix("-"), sign / joint.scale
    if unknown := sorted(names.keys() - known):
        has = ", ".join(sorted(known)) or "none"
        raise UserError(f"the leader arm drives joint '{unknown[0]}'; the action has: {has}")
    if not found:
        path = context.contract.path
        raise UserError(f"{path} has no action with goals of joints; use source pose for a gripper")
    return found


JUMP_M, JUMP_RAD = 0.15, 0.6
"""No hand moves or turns further between two messages. Farther is a lost target."""


class LeaderArm(TrackingSource):
    """Moves the joints as far from where they are as the leader's joints have moved, scaled."""

    name, kind = "leader arm", JointState

    def __init__(self, node: Node, context: TeleopContext, tracking: TrackingMap) -> None:
        """Raises `UserError` if the action has no such joints."""
        joints = _leader_joints(context, tracking.joints)
        self._context, self._places = context, list(joints)
        self._joints = [leader for leader, _ in joints.values()]
        self._factors = tracking.scale * np.array([factor for _, factor in joints.values()])
        super().__init__(node, context, tracking)
        self._now: Numbers | None = None
        self._start: tuple[Numbers, Vector] | None = None

    def _follow(self, message: JointState) -> None:
        angles = dict(zip(message.name, message.position, strict=False))
        names = list(message.name)
        for joint in self._joints:
            if joint not in angles:
                others = printable(", ".join(angles), 500) or "none"
                raise ValueError(f"does not tell joint '{joint}', but {others}")
            if names.count(joint) > 1:
                raise ValueError(f"tells joint '{joint}' twice in one message")
        before, self._now = self._now, np.array([angles[name] for name in self._joints])
        if not np.isfinite(self._now).all():
            raise ValueError("tells joints that are not finite")
        if before is not None and (step := np.abs(self._now - before).max()) > JUMP_RAD:
            raise ValueError(f"has jumped by {step:.1f} rad")

    def _let_go(self) -> None:
        self._now = self._start = None

    def _move(self, values: Vector, step_s: float) -> None:
        """Set the goals of the joints; they stay until both arms are known."""
        goals = self._context.goals[self._places]
        if self._now is None:
            return
        if self._start is None and np.isfinite(goals).all():
            self._start = self._now, goals
        if self._start is not None:
            leader, robot = self._start
            values[self._places] = robot + self._factors * (self._now - leader)


SPREAD_S = 0.1
"""The robot catches up with what a hand has moved with this time constant."""
LONGEST_LAG_S = 0.3


class MotionBacklog:
    """The motion along three axes that the robot has not been told yet.

    What the robot cannot do, since its limits are lower, waits for at most `LONGEST_LAG_S` of its fastest
    motion, so that it stands still soon after the hand. most: its largest speed, above 0; inf for any.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._waiting: Numbers = np.zeros(3)

    def add(self, motion: Numbers) -> None:
        """Add a motion, (3,)."""
        self._waiting = _shortened(self._waiting + motion, self._most * LONGEST_LAG_S)

    def take(self, seconds: float) -> Numbers:
        """Return the speed (3,) for the next so many seconds, and remove what it moves."""
        speed = _shortened(self._waiting / max(SPREAD_S, seconds), self._most)
        self._waiting = self._waiting - speed * seconds
        return speed

    def clear(self) -> None:
        """Remove all motion."""
        self._waiting = np.zeros(3)


def _shortened(vector: Numbers, most: float) -> Numbers:
    """Return a vector of the same direction that is no longer than `most`."""
    length = float(np.linalg.norm(vector))
    return vector if length <= most else vector * (most / length)


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


def _axes_of(context: TeleopContext, part: str, moves: str) -> tuple[Numbers, float]:
    """Return (A, 3), which makes the action of a motion's speed, and the largest speed, in m/s or rad/s.

    moves: `linear` or `angular`. Raises `UserError` if no value of the part does.
    """
    spec, matrix, most = context.spec, np.zeros((context.spec.action_size, 3)), math.inf
    if not part:
        return matrix, most
    sink = next(each for each in context.contract.actions if each.name == part)
    for value, each in enumerate(sink.fields if sink.type in MOTION_TYPES else ()):
        if f".{moves}." in f".{each.path}":
            factor = (spec.control_dt_s if sink.per_second else 1.0) / each.scale
            most = min(most, most_speed(context, sink, value) / abs(factor))
            place = spec.action_slices[part].start + value
            matrix[place, AXES.index(each.path[-1])] = factor
    if not matrix.any():
        path = context.contract.path
        raise UserError(f"'{part}' of {path} has no field such as {moves}.x; name another part")
    return matrix, most


def default_pose(context: TeleopContext) -> TrackingMap:
    """Return what a hand moves by the contract: the parts with all three axes. Raises `UserError`."""

    def whole(moves: str) -> str:
        wanted = {f"{moves}.{axis}" for axis in AXES}
        for sink in context.contract.actions:
            directions = {".".join(each.path.split(".")[-2:]) for each in sink.fields}
            if sink.type in MOTION_TYPES and wanted <= directions:
                return sink.name
        return ""

    translation, rotation = whole("linear"), whole("angular")
    if not translation and not rotation:
        raise UserError(
            f"{context.contract.path} has no action with linear.x, linear.y and linear.z, or angular ones; "
            "take source leader for goals of joints"
        )
    buttons = default_gamepad(context)
    others = tuple(drive for drive in buttons.drives if drive.part not in (translation, rotation))
    controls = replace(buttons, drives=others)
    return TrackingMap(
        "hand_pose", "button 4", controls, translation=translation, rotation=rotation
    )


class PoseTracker(TrackingSource):
    """Moves and turns the gripper as a hand moves and turns, scaled."""

    name, kind = "hand", PoseStamped

    def __init__(self, node: Node, context: TeleopContext, tracking: TrackingMap) -> None:
        """Raises `UserError` if the parts that it drives have no such values."""
        super().__init__(node, context, tracking)
        linear, most_m_s = _axes_of(context, tracking.translation, "linear")
        angular, most_rad_s = _axes_of(context, tracking.rotation, "angular")
        self._axes = linear, angular
        self._backlogs = MotionBacklog(most_m_s), MotionBacklog(most_rad_s)
        self._scaled = tracking.scale * tracking.matrix
        # A mirrored frame turns the other way.
        mirror = float(np.linalg.det(tracking.matrix))
        self._turn_scaled = tracking.turn_scale * mirror * tracking.matrix
        self._before: Pose | None = None

    def _follow(self, message: PoseStamped) -> None:
        at, to = message.pose.position, message.pose.orientation
        pose = Pose.of((at.x, at.y, at.z), (to.x, to.y, to.z, to.w))
        before, self._before = self._before, pose
        if pose is None:
            raise ValueError("has a pose that is not finite, or whose quaternion has no length")
        if before is None:
            return
        displacement, rotation = before.motion_to(pose)
        moved_m, turned_rad = np.linalg.norm(displacement), np.linalg.norm(rotation)
        if moved_m > JUMP_M or turned_rad > JUMP_RAD:
            raise ValueError(f"has jumped by {moved_m:.2f} m and {turned_rad:.1f} rad")
        self._backlogs[0].add(self._scaled @ displacement)
        self._backlogs[1].add(self._turn_scaled @ rotation)

    def _let_go(self) -> None:
        self._before = None
        for backlog in self._backlogs:
            backlog.clear()

    def _move(self, values: Vector, step_s: float) -> None:
        for backlog, axes in zip(self._backlogs, self._axes, strict=True):
            driven = axes.any(axis=1)
            values[driven] = axes[driven] @ backlog.take(step_s)
