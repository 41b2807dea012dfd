"""Drives by a leader arm: the joints of an arm that a person moves by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import JointState

from ttm.policy.errors import UserError, printable
from ttm_policy.contract.robot_contract import JOINT_TYPES
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.controls import ControlMap, Vector
from ttm_policy.teleop.default_controls import default_gamepad
from ttm_policy.teleop.hands.hand_map import HandMap
from ttm_policy.teleop.hands.hand_motion import JUMP_RAD
from ttm_policy.teleop.hands.hand_source import HandSource


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
    led = {joint.place for joint in _joints(cockpit, {})}
    starts = {name: where.start for name, where in cockpit.spec.action_slices.items()}
    others = tuple(d for d in buttons.drives if starts[d.part] + d.value not in led)
    controls = ControlMap(others, buttons.gives_back, buttons.dead_zone)
    return HandMap("leader/joint_states", "button 4", controls)


def _joints(cockpit: Cockpit, names: Mapping[str, str]) -> list[Joint]:
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
        self._joints = _joints(cockpit, hand.joints)
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
