"""Drives by the pose of a tracked hand, such as a controller of virtual reality."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node

from ttm.policy.errors import UserError
from ttm_policy.contract.robot_contract import MOTION_TYPES, ActionSink, RobotContract
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.controls import ControlMap, Vector
from ttm_policy.teleop.default_controls import default_gamepad, most_speed
from ttm_policy.teleop.hands.hand_map import AXES, HandMap
from ttm_policy.teleop.hands.hand_motion import OwedMotion, Pose, is_jump
from ttm_policy.teleop.hands.hand_source import HandSource

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
