"""A tracked hand and a leader arm: the clutch, motion of a hand, and what moves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import ActionSink, Field
from ttm_policy.teleop.controls import ControlMap
from ttm_policy.teleop.source import TeleopContext
from ttm_policy.teleop.tracking import (
    LONGEST_LAG_S,
    LeaderArm,
    MotionBacklog,
    Pose,
    PoseTracker,
    TrackingSource,
    default_leader,
    default_pose,
)

MOVED = SPEC.action_slices["arm_translation"]
TURNED = SPEC.action_slices["arm_rotation"]
STEP_S = 0.02


class NoNode:
    """Makes no subscriptions, so that tests hand over messages and times themselves."""

    def create_subscription(self, *_: Any) -> None: ...
    def resolve_topic_name(self, name: str) -> str:
        return f"/left/{name}"


def pose(
    x: float = 0.0, y: float = 0.0, z: float = 0.0, turn: tuple[float, ...] = (0, 0, 0, 1)
) -> Any:
    """A pose. turn: quaternion, x y z w."""
    message = PoseStamped()
    at, to = message.pose.position, message.pose.orientation
    at.x, at.y, at.z = float(x), float(y), float(z)
    to.x, to.y, to.z, to.w = (float(value) for value in turn)
    return message


def press(source: TrackingSource, held: bool, now_s: float) -> None:
    """Press or release button 4, the clutch."""
    source._pad.state.take(Joy(axes=[0.0] * 8, buttons=[0, 0, 0, 0, int(held)]), now_s)


@pytest.fixture
def node() -> Any:
    return NoNode()


class Person:
    """Holds the hand, 50 poses a second, and adds up what the robot is told."""

    def __init__(self, node: Any, context: TeleopContext, **changes: Any) -> None:
        self.hand = PoseTracker(node, context, replace(default_pose(context), **changes))
        self.now_s, self.held = 1.0, True
        self.moved = np.zeros(6)
        self.speed = np.zeros(6)

    def hold(self, message: Any, ticks: int = 1) -> Any:
        """Let time pass, and return the last wish."""
        wish = None
        for _ in range(ticks):
            self.now_s += STEP_S
            press(self.hand, self.held, self.now_s)
            if message is not None:
                self.hand.take(message, self.now_s)
            wish = self.hand.wish(self.now_s)
            if wish is not None:
                self.speed = np.concatenate([wish.values[MOVED], wish.values[TURNED]])
                self.moved += self.speed / SPEC.control_dt_s * STEP_S
        return wish


@pytest.fixture
def person(node: Any, context: TeleopContext) -> Person:
    found = Person(node, context, scale=0.5, axes=("-z", "-x", "y"))
    found.hold(pose())
    return found


def test_the_robot_moves_and_turns_as_the_hand_does_scaled_and_along_its_axes(
    person: Person,
) -> None:
    for n in range(1, 11):
        person.hold(pose(0.01 * n, 0.0, -0.02 * n, (0, np.sin(0.005 * n), 0, np.cos(0.005 * n))))
    wish = person.hold(pose(0.1, 0.0, -0.2, (0, np.sin(0.05), 0, np.cos(0.05))), 60)
    # forward is -z of the hand, left is -x, and its turn about y, which is up, is one about z
    assert person.moved == pytest.approx([0.1, -0.05, 0, 0, 0, 0.1], abs=1e-3)
    assert np.abs(person.speed).max() < 1e-3
    assert np.isnan(wish.values[SPEC.action_slices["gripper"]])
    assert wish.values[SPEC.action_slices["base"]].tolist() == [0, 0]


def test_without_the_clutch_nobody_drives_and_pressing_it_anew_moves_nothing(
    person: Person,
) -> None:
    person.hold(pose(0.05))
    assert person.speed[1] != 0
    person.held = False
    assert person.hold(pose(0.05)) is None
    assert person.hold(pose(0.14)) is None
    person.held, person.moved = True, np.zeros(6)
    assert person.hold(pose(0.2), 10) is not None
    assert not person.moved.any()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (pose(0.2), "has jumped by 0.20 m"),
        (pose(turn=(0, 0, np.sin(0.5), np.cos(0.5))), "has jumped by 0.00 m and 1.0 rad"),
        (pose(turn=(1, 0, 0, 0)), "has jumped by 0.00 m and 3.1 rad"),
        (pose(np.nan), "a pose that is not finite"),
        (pose(turn=(0, 0, 0, 0)), "a pose that is not finite"),
    ],
)
def test_a_jump_moves_nothing_until_the_clutch_is_pressed_anew(
    person: Person, bad: Any, words: str
) -> None:
    assert person.hold(bad).values[MOVED].tolist() == [0, 0, 0]  # buttons may go on
    assert words in person.hand.problem
    assert "press its clutch again" in person.hand.problem
    person.hold(pose(0.01), 5)
    person.hold(pose(0.02), 5)
    assert not person.moved.any()
    person.held = False
    person.hold(pose(0.02))
    assert not person.hand.problem
    person.held = True
    person.hold(pose(0.02))
    person.hold(pose(0.04), 60)
    assert person.moved[1] == pytest.approx(-0.01, abs=1e-4)


def test_a_silent_hand_or_clutch_is_as_old_as_it_is(person: Person) -> None:
    last_s = person.now_s
    assert person.hold(None, 20).stamp_s == last_s  # Arbiter stop the robot by this
    person.moved[:] = 0
    person.hold(pose(0.3), 5)  # where it is when it comes back
    assert not person.moved.any()
    person.now_s += 1.0
    person.hand.take(pose(0.3), person.now_s)
    assert person.hand.wish(person.now_s).stamp_s == person.now_s - 1.0  # type: ignore[union-attr]


def test_a_hand_needs_velocities(node: Any, context: TeleopContext) -> None:
    without = replace(
        context, contract=replace(context.contract, actions=context.contract.actions[2:3])
    )
    with pytest.raises(UserError, match=r"has no action with linear\.x, linear\.y and linear\.z"):
        default_pose(without)
    with pytest.raises(UserError, match=r"'base' of .* has no field such as angular\.x"):
        PoseTracker(node, replace(context, contract=replace(
            context.contract, actions=tuple(
                replace(sink, fields=sink.fields[:1]) for sink in context.contract.actions))),
            replace(default_pose(context), rotation="base"))  # fmt: skip


JOINTS = ("shoulder", "elbow")


@pytest.fixture
def two_joints(context: TeleopContext) -> TeleopContext:
    """A robot that is driven by the goals of two joints, the first one in half radians."""
    fields = (
        Field("shoulder", scale=0.5, minimum=-2, maximum=2),
        Field("elbow", minimum=-2, maximum=2),
    )
    arm = ActionSink("arm", "arm", "trajectory_msgs/JointTrajectory", fields)
    part = replace(SPEC.actions[2], name="arm", kind="continuous", size=2, low=-4.0, high=4.0)
    contract = replace(context.contract, actions=(arm,))
    found = replace(context, contract=contract, spec=replace(SPEC, actions=(part,)))
    found.goals = np.full(2, np.nan, np.float32)
    return found


def arm(*angles: float, names: tuple[str, ...] = JOINTS) -> JointState:
    return JointState(name=names, position=[float(angle) for angle in angles])


def test_a_leader_arm_moves_the_joints_from_where_they_are(
    node: Any, two_joints: TeleopContext
) -> None:
    hand = replace(default_leader(two_joints), scale=2.0, joints={"elbow": "-leader_elbow"})
    names = ("other", "leader_elbow", "shoulder")
    leader = LeaderArm(node, two_joints, hand)

    def hold(*angles: float, held: bool = True) -> Any:
        hold.now_s += STEP_S  # type: ignore[attr-defined]
        press(leader, held, hold.now_s)  # type: ignore[attr-defined]
        leader.take(arm(*angles, names=names), hold.now_s)  # type: ignore[attr-defined]
        wish = leader.wish(hold.now_s)  # type: ignore[attr-defined]
        return None if wish is None else wish.values.tolist()

    hold.now_s = 1.0  # type: ignore[attr-defined]
    assert hold(9, 1.0, -1.0, held=False) is None
    assert np.isnan(hold(9, 1.0, -1.0)).all(), "it is not known yet where the robot is"
    two_joints.goals = np.array([0.5, 0.2], np.float32)
    assert hold(9, 1.0, -1.0) == pytest.approx([0.5, 0.2])
    assert hold(9, 1.1, -1.2) == pytest.approx([0.5 - 2 * 0.2 / 0.5, 0.2 - 2 * 0.1], abs=1e-6)
    assert hold(9, 1.8, -1.2) is None
    assert leader.problem == "leader arm has jumped by 0.7 rad; press its clutch again"
    assert hold(9, 1.8, -1.2) is None
    assert hold(9, 1.5, -1.2, held=False) is None
    assert hold(9, 1.5, -1.2) == pytest.approx([0.5, 0.2]), "from where the robot is now"
    assert hold(9, np.nan, -1.2) is None
    assert "not finite" in leader.problem
    leader.take(arm(1.0, names=("other",)), 9.0)
    assert "does not tell joint 'shoulder', but other" in leader.problem
    leader.take(arm(1.0, 1.0, 1.0, names=("shoulder", "leader_elbow", "shoulder")), 9.0)
    assert "tells joint 'shoulder' twice in one message" in leader.problem


def test_a_leader_arm_needs_goals_of_joints(
    context: TeleopContext, two_joints: TeleopContext, node: Any
) -> None:
    with pytest.raises(UserError, match="has no action with goals of joints"):
        default_leader(context)  # its gripper has two states, and so a button
    wrong = replace(default_leader(two_joints), joints={"wrist": "leader_wrist"})
    with pytest.raises(UserError, match="drives joint 'wrist'; the action has: elbow, shoulder"):
        LeaderArm(node, two_joints, wrong)


def test_a_clutch_may_be_a_topic_of_its_own(node: Any, context: TeleopContext) -> None:
    hand = PoseTracker(node, context, replace(default_pose(context), clutch="hand/clutch"))
    hand.take(pose(), 1.0)
    assert hand.wish(1.0) is None
    hand._receive_clutch(Bool(data=True))
    hand.take(pose(), 1.1)
    assert hand.wish(1.1) is not None
    hand._receive_clutch(Bool(data=False))
    assert hand.wish(1.1) is None


def test_what_was_never_heard_is_told(node: Any, context: TeleopContext) -> None:
    found = default_pose(context)
    hand = PoseTracker(node, context, replace(found, topic="hnad", clutch="hand/clutch"))
    assert hand.unheard == "; ".join(
        f"nothing has come from /left/{topic} yet: check its name and publisher"
        for topic in (
            "hnad (geometry_msgs/PoseStamped)",
            "hand/clutch (std_msgs/Bool)",
            "joy (sensor_msgs/Joy)",
        )
    )
    hand.take(pose(), 1.0)
    hand._receive_clutch(Bool(data=False))
    hand._pad._receive(Joy(axes=[0.0] * 8, buttons=[0] * 4))
    assert hand.unheard == (
        "/left/joy has 8 axes and 4 buttons, but the controls name button 5, button 4"
    )
    without = replace(found, clutch="hand/clutch", controls=ControlMap(()))
    assert "joy" not in PoseTracker(node, context, without).unheard
    by_button = PoseTracker(node, context, replace(without, clutch="button 9"))
    by_button._pad._receive(Joy(buttons=[0] * 9))
    assert by_button.unheard.endswith("has 0 axes and 9 buttons, but the controls name button 9")


def test_a_silent_joy_ends_what_its_buttons_drive_though_hand_and_clutch_go_on(
    node: Any, context: TeleopContext
) -> None:
    hand = PoseTracker(node, context, replace(default_pose(context), clutch="hand/clutch"))
    hand._receive_clutch(Bool(data=True))
    hand._pad.state.take(Joy(axes=[1.0] * 8, buttons=[1] * 8), 1.0)
    hand.take(pose(), 2.0)
    wish = hand.wish(2.0)
    assert wish is not None
    assert wish.values[SPEC.action_slices["base"]].any()
    assert wish.stamp_s == 1.0  # Arbiter stop the robot by this
    hand._pad.state.take(Joy(axes=[0.0] * 8, buttons=[0] * 8), 1.0)
    wish = hand.wish(2.0)
    assert wish is not None
    assert wish.stamp_s == 2.0, "no button is held, so that joy may be silent"


HALF = np.sqrt(0.5)


@pytest.mark.parametrize("before", [(0, 0, 0, 1), (HALF, 0, 0, HALF), (0.5, -0.5, 0.5, 0.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_turn_is_told_in_the_fixed_frame_whatever_the_orientation_is(before, sign):
    """A quarter turn about z, applied from the left. Both signs of a quaternion are the same turn."""
    x, y, z, w = before
    after = HALF * np.array([x - y, y + x, z + w, w - z])
    first, second = Pose.of((0, 0, 0), before), Pose.of((1, 2, 3), sign * after)
    assert first is not None
    assert second is not None
    displacement, rotation = first.motion_to(second)
    assert displacement.tolist() == [1, 2, 3]
    assert rotation == pytest.approx([0, 0, np.pi / 2], abs=1e-9)
    assert first.motion_to(first)[1] == pytest.approx([0, 0, 0])


@pytest.mark.parametrize(
    ("position", "quaternion"),
    [((np.nan, 0, 0), (0, 0, 0, 1)), ((0, np.inf, 0), (0, 0, 0, 1)), ((0, 0, 0), (0, 0, 0, 0)),
     ((0, 0, 0), (np.nan, 0, 0, 1))],
)  # fmt: skip
def test_what_is_no_pose_is_refused(position, quaternion):
    assert Pose.of(position, quaternion) is None


def test_all_that_is_owed_is_handed_on_and_no_faster_than_allowed():
    owed, moved = MotionBacklog(0.5), np.zeros(3)
    owed.add(np.array([0.03, -0.04, 0.0]))
    for _ in range(60):
        speed = owed.take(0.02)
        assert np.linalg.norm(speed) <= 0.5 + 1e-9
        moved += speed * 0.02
    assert moved == pytest.approx([0.03, -0.04, 0.0], abs=1e-5)
    for _ in range(10):
        owed.add(np.array([1.0, 0.0, 0.0]))
    fast = [owed.take(0.02)[0] for _ in range(60)]
    assert sum(fast) * 0.02 == pytest.approx(0.5 * LONGEST_LAG_S, rel=1e-3)
    owed.add(np.array([1.0, 0.0, 0.0]))
    owed.clear()
    assert owed.take(0.02).tolist() == [0, 0, 0]
