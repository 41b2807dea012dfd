"""What the limits leave of an action, in the numbers of the messages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec, UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import (
    RAMP,
    ActionSink,
    Field,
    RobotContract,
    VectorSource,
    Workspace,
    load_contract,
)
from ttm_policy.limits import JointLimit, SafetyLimits
from ttm_policy.messages import CommandCodec
from ttm_policy.parameters import LIMITS

WIDE = dict.fromkeys(LIMITS, 100.0)
FREE = dict.fromkeys(LIMITS, math.inf)
SERVO = "servo_node/delta_twist_cmds"
PERIOD_S = SPEC.control_dt_s


def _action(**parts: Any) -> np.ndarray:
    values = np.zeros(SPEC.action_size, dtype=np.float32)
    for name, part in parts.items():
        values[SPEC.action_slices[name]] = part
    return values


def _scaled(scale: float) -> RobotContract:
    """The shipped contract with all velocities scaled."""
    contract = load_contract()
    return replace(
        contract,
        actions=tuple(
            replace(sink, fields=tuple(replace(field, scale=scale) for field in sink.fields))
            if sink.limits
            else sink
            for sink in contract.actions
        ),
    )


def _velocity(message: Any) -> np.ndarray:
    twist = message.twist
    return np.array([getattr(v, axis) for v in (twist.linear, twist.angular) for axis in "xyz"])


def test_stopped_is_the_command_that_the_codec_leaves_in_force_after_a_stop() -> None:
    contract = load_contract()
    codec, limits = CommandCodec(contract, SPEC), SafetyLimits(contract, SPEC, WIDE)
    action = np.linspace(0.1, 1.0, SPEC.action_size, dtype=np.float32)
    in_force = {**codec.encode(action, Time()), **codec.stop(Time())}
    assert np.array_equal(limits.stopped(action), codec.decode(in_force))
    assert np.count_nonzero(limits.stopped(action)) == 2  # gripper and terminate


@pytest.mark.parametrize("most", [WIDE, FREE])
def test_limits_keep_what_is_within_them_to_the_bit(most: dict[str, float]) -> None:
    limits = SafetyLimits(load_contract(), SPEC, most)
    action = _action(
        arm_translation=(0.05, -0.05, 0.03),
        arm_rotation=(0.15, 0.1, -0.15),
        base=(0.8, -0.8),
        gripper=1,
    )
    assert np.array_equal(limits.apply(action), action)


def test_limits_shorten_displacements_and_cut_speeds() -> None:
    limits = SafetyLimits(
        load_contract(), SPEC, WIDE | {"max_translation_m": 0.01, "max_forward_m_s": 0.2}
    )
    rotation, closed = (0.1, -0.1, 0.15), 1
    action = _action(
        arm_translation=(0.03, 0, 0.04), arm_rotation=rotation, gripper=closed, base=(-0.5, 0.7)
    )
    limited = limits.apply(action)
    assert limited[SPEC.action_slices["arm_translation"]] == pytest.approx((0.006, 0, 0.008))
    assert limited[SPEC.action_slices["base"]] == pytest.approx((-0.2, 0.7))
    for name in ("arm_rotation", "gripper"):
        where = SPEC.action_slices[name]
        assert np.array_equal(limited[where], action[where]), name


def test_limits_cut_to_the_specs_bounds_and_refuse_nan() -> None:
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    assert limits.apply(_action(arm_rotation=(9, 0, 0)))[3] == pytest.approx(0.15)
    with pytest.raises(ArithmeticError, match="not finite"):
        limits.apply(_action(base=(np.nan, 0)))
    with pytest.raises(UserError, match=r"max_yaw_rad_s is 0\.0"):
        SafetyLimits(load_contract(), SPEC, WIDE | {"max_yaw_rad_s": 0.0})


@pytest.mark.parametrize("scale", [100.0, -3.0, 0.3])
def test_the_message_is_limited_after_its_scale(scale: float) -> None:
    contract, rng = _scaled(scale), np.random.default_rng(0)
    codec = CommandCodec(contract, SPEC)
    most = FREE | {
        "max_forward_m_s": 0.05,
        "max_yaw_rad_s": 0.1,
        "max_translation_m": 0.01,
        "max_rotation_rad": 0.02,
    }
    limits = SafetyLimits(contract, SPEC, most)
    for _ in range(200):
        action = limits.apply(rng.normal(0, 1, SPEC.action_size).astype(np.float32))
        messages = codec.encode(action, Time())
        base, arm = _velocity(messages["cmd_vel"]), _velocity(messages[SERVO])
        assert abs(base[0]) <= 0.05
        assert abs(base[5]) <= 0.1
        assert np.linalg.norm(arm[:3]) * PERIOD_S <= 0.01 * (1 + 1e-15)
        assert np.linalg.norm(arm[3:]) * PERIOD_S <= 0.02 * (1 + 1e-15)
        assert np.abs(base).max() > 0


def test_acceleration_and_jerk_of_the_message_are_limited_until_a_stop() -> None:
    contract, rng = _scaled(2.0), np.random.default_rng(0)
    codec = CommandCodec(contract, SPEC)
    most = FREE | {
        "max_forward_m_s": 0.5,
        "max_forward_accel_m_s2": 0.4,
        "max_forward_jerk_m_s3": 2.0,
    }
    limits = SafetyLimits(contract, SPEC, most)

    def forward(wanted: float) -> float:
        action = limits.apply(_action(base=(wanted, 0)))
        return float(codec.encode(action, Time())["cmd_vel"].twist.linear.x)

    speeds = np.array([0.0, 0.0] + [forward(x) for x in rng.normal(0, 0.5, 300)])
    acceleration = np.diff(speeds) / PERIOD_S
    assert np.abs(speeds).max() <= 0.5
    assert np.abs(acceleration).max() <= 0.4 + 1e-5
    assert np.abs(np.diff(acceleration)).max() / PERIOD_S <= 2.0 + 1e-4
    assert np.abs(acceleration).max() > 0.3
    limits.halt()
    assert forward(0.25) == pytest.approx(2.0 * PERIOD_S**2)  # from rest again


def test_new_limits_hold_from_the_next_action_on() -> None:
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    action = _action(base=(0.5, 0.5))
    assert np.array_equal(limits.apply(action), action)
    limits.set_limits(WIDE | {"max_forward_m_s": 0.125})
    assert limits.apply(action)[SPEC.action_slices["base"]] == pytest.approx((0.125, 0.5))
    with pytest.raises(UserError, match="max_forward_m_s is nan"):
        limits.set_limits(WIDE | {"max_forward_m_s": math.nan})
    assert limits.apply(action)[SPEC.action_slices["base"]] == pytest.approx((0.125, 0.5))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((0.5, 0.0, 0.5), (0.03, 0.0, -0.03)),  # far from all walls
        ((0.99, 0.0, 0.5), (0.01, 0.0, -0.03)),
        ((1.2, 0.0, 0.01), (0.0, 0.0, -0.01)),  # outside: no step further out
        ((0.5, 0.0, -0.2), (0.03, 0.0, 0.0)),
    ],
)
def test_the_gripper_stays_in_its_workspace(position: Any, expected: Any) -> None:
    box = Workspace("arm_translation", "ee_pose", (0.0, -1.0, 0.0), (1.0, 1.0, 2.0))
    limits = SafetyLimits(replace(load_contract(), workspace=box), SPEC, WIDE)
    observation = {"ee_pose": np.array([*position, 0, 0, 0, 1], np.float32)}
    limited = limits.apply(_action(arm_translation=(0.03, 0.0, -0.03)), observation)
    assert limited[SPEC.action_slices["arm_translation"]] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("late_s", [0.0, 0.05, 0.15, 0.35])
@pytest.mark.parametrize("smooth", [False, True])
def test_a_gripper_that_moves_while_the_policy_thinks_stays_in_its_workspace(
    late_s: float, smooth: bool
) -> None:
    """Commands come late, and every fourth one only at the end of the lifespan of the one before."""
    box = Workspace("arm_translation", "ee_pose", (0.0, -1.0, 0.0), (1.0, 1.0, 2.0))
    contract = replace(load_contract(), workspace=box)
    actions = tuple(replace(s, smooth=smooth and bool(s.limits)) for s in contract.actions)
    lasts_s = 1.5 * PERIOD_S
    limits = SafetyLimits(replace(contract, actions=actions), SPEC, WIDE, lasts_s=lasts_s)
    action = _action(arm_translation=(0.05, 0.0, 0.0))
    x, old, left_s, path = 0.8, 0.0, 0.0, []
    for tick in range(60):
        observation = {"ee_pose": np.array([x, 0, 1, 0, 0, 0, 1], np.float32)}
        x += old * min(late_s, left_s)  # the command before moves it on
        path.append(x)
        new = float(limits.apply(action, observation, late_s=late_s)[0]) / PERIOD_S
        ramp_s = RAMP * PERIOD_S if smooth and late_s else 0.0
        now_s = lasts_s if tick % 4 == 3 else max(PERIOD_S - late_s, ramp_s)
        x += (old + new) / 2 * ramp_s + new * (now_s - ramp_s)
        path.append(x)
        old, left_s = new, lasts_s - now_s
    assert max(path) <= 1.0 + 1e-6
    assert path[-1] > 0.99


@pytest.mark.parametrize("toward", [-1, 1])
def test_a_gripper_that_was_held_back_gets_no_room_beyond_its_workspace(toward: int) -> None:
    """It stands at a side, has not carried out the command that led away, and is then led outwards."""
    box = Workspace("arm_translation", "ee_pose", (0.0, -1.0, 0.0), (1.0, 1.0, 2.0))
    limits = SafetyLimits(replace(load_contract(), workspace=box), SPEC, WIDE)
    side = {"ee_pose": np.array([toward > 0, 0, 1, 0, 0, 0, 1], np.float32)}
    inwards = limits.apply(_action(arm_translation=(-0.05 * toward, 0.0, 0.0)), side)
    assert inwards[0] == pytest.approx(-0.05 * toward)
    outwards = limits.apply(_action(arm_translation=(0.05 * toward, 0.0, 0.0)), side, late_s=0.35)
    assert outwards[0] == 0.0


ARM = PolicySpec(
    "arm",
    (),
    (ProprioceptionSpec("joints", ("a (deg)", "b")),),
    (ActionPart("arm", 2, "rad"), ActionPart("hand", 1, "0 to 1", "binary")),
    rate_hz=10.0,
)
TRAJECTORY = "trajectory_msgs/JointTrajectory"


def _arm(limit: bool = True) -> RobotContract:
    joints = (Field("a", 10.0), Field("b"))
    goals = (Field("a"), Field("b", -2.0, -1.0, 1.0))
    fingers = (Field("left", 0.05, 0.0, 0.04), Field("right", -0.05, -0.04, 0.0))
    return RobotContract(
        "arm",
        "base_link",
        (),
        (VectorSource("joints", "joint_states", "sensor_msgs/JointState", joints),),
        (
            ActionSink("arm", "goal", TRAJECTORY, goals, limits=("max_joint_rad_s",) * limit),
            ActionSink("hand", "hand", TRAJECTORY, fingers),
        ),
        "arm.yaml",
    )


def _goal(limits: SafetyLimits, contract: RobotContract, *arm: float) -> list[float]:
    """The joint goal (a, b) that is sent for the action, from joints measured at 0.2 and 0.5 rad."""
    action = limits.apply(
        np.array([*arm, 1], np.float32), {"joints": np.array([2.0, 0.5], np.float32)}
    )
    return list(CommandCodec(contract, ARM).encode(action, Time())["goal"].points[0].positions)


def test_commands_between_ticks_obey_the_same_limits_in_time() -> None:
    limits = WIDE | {"max_translation_m": 0.02, "max_translation_accel_m_s2": 0.2}
    often = SafetyLimits(load_contract(), SPEC, limits, period_s=0.02)
    sent = [often.apply(_action(arm_translation=(1, 0, 0)))[0] / PERIOD_S for _ in range(60)]
    assert np.allclose(np.diff(sent)[:20], 0.2 * 0.02, atol=1e-6)  # m/s a command
    assert sent[-1] == pytest.approx(
        0.02 / PERIOD_S
    )  # and the displacement is still that of a tick


def test_goals_of_joints_have_limits_of_speed_acceleration_and_range() -> None:
    contract = _arm()
    limits = SafetyLimits(contract, ARM, FREE | {"max_joint_rad_s": 1.0})
    assert _goal(limits, contract, 5.0, -5.0) == pytest.approx([0.3, 0.6])
    assert _goal(limits, contract, 5.0, -5.0) == pytest.approx([0.4, 0.7])
    goals = [_goal(limits, contract, 5.0, -5.0) for _ in range(8)]
    assert goals[-1] == pytest.approx([1.2, 1.0])
    assert max(goal[1] for goal in goals) <= 1.0
    limits.halt()  # somebody may have moved the arm: measured again
    assert _goal(limits, contract, -5.0, -0.25) == pytest.approx([0.1, 0.5])
    slow = FREE | {"max_joint_rad_s": 1.0, "max_joint_accel_rad_s2": 2.0}
    limits = SafetyLimits(contract, ARM, slow)
    goals = [_goal(limits, contract, 5.0, -0.25) for _ in range(4)]
    assert np.diff([0.2] + [a for a, _ in goals]) == pytest.approx([0.02, 0.04, 0.06, 0.08])


def test_one_value_for_several_joints_obeys_the_strictest_range() -> None:
    contract = _arm()
    limits = SafetyLimits(contract, ARM, WIDE)
    action = limits.apply(np.array([0.2, -0.25, 1], np.float32), {"joints": np.array([2.0, 0.5])})
    sent = CommandCodec(contract, ARM).encode(action, Time())["hand"].points[0].positions
    assert list(sent) == pytest.approx([0.04, -0.04])
    assert max(map(abs, sent)) <= 0.04


def test_the_robots_description_narrows_ranges_and_speeds() -> None:
    contract = _arm()
    limits = SafetyLimits(contract, ARM, FREE | {"max_joint_rad_s": 1.0})
    fingers = {"left": JointLimit(0.0, 0.05), "right": JointLimit(-0.03, 0.0)}
    limits.set_joint_limits({"a": JointLimit(-3, 0.25, 0.2), "b": JointLimit(), **fingers})
    assert _goal(limits, contract, 5.0, -0.25)[0] == pytest.approx(0.22)
    for _ in range(4):
        most = _goal(limits, contract, 5.0, -0.25)[0]
    assert most == pytest.approx(0.25)
    assert most <= 0.25
    with pytest.raises(UserError, match=r"joint 'b' of arm\.yaml is not in robot_description"):
        limits.set_joint_limits({"a": JointLimit(), **fingers})
    far = JointLimit(2.0, 3.0)
    with pytest.raises(UserError, match=r"may be -1 to 1 in arm\.yaml, but 2 to 3"):
        limits.set_joint_limits({"a": JointLimit(), "b": far, **fingers})
    assert _goal(limits, contract, 5.0, -0.25)[0] <= 0.25  # those before stay in force


def test_a_joint_outside_of_its_range_is_led_back_at_its_speed() -> None:
    contract = _arm()
    limits = SafetyLimits(contract, ARM, FREE | {"max_joint_rad_s": 1.0})
    measured = {"joints": np.array([2.0, 1.5], np.float32)}
    action = limits.apply(np.array([0.2, -5.0, 0], np.float32), measured)
    assert action[1] * -2.0 == pytest.approx(1.4)
