"""What a person's command becomes before it is sent to the robot."""

from __future__ import annotations

from dataclasses import replace
from threading import RLock
from unittest.mock import MagicMock

import numpy as np
import pytest
from rclpy.time import Time

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import Workspace, load_contract
from ttm_policy.inputs import PERIOD_S, StampedObservation
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop import session as robot_output
from ttm_policy.teleop.session import RobotOutput
from ttm_policy.teleop.source import TeleopContext


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(node: MagicMock) -> MagicMock:
        return MagicMock(owner=node, lock=RLock(), stopped=False)

    monkeypatch.setattr(robot_output, "StopThread", made)


BOX = Workspace("arm_translation", "ee_pose", (0.0, -1.0, 0.0), (1.0, 1.0, 2.0))


@pytest.mark.parametrize("old", [0, 5, 15])
def test_a_gripper_stays_in_its_workspace_though_its_pose_is_old(old: int) -> None:
    """old: how many commands ago the pose was measured."""
    contract, parameters = replace(load_contract(), workspace=BOX), TeleopParameters()
    node = MagicMock()
    node.create_publisher.return_value.get_subscription_count.return_value = (
        2  # its own, and the robot's
    )
    context = TeleopContext(contract, SPEC, parameters.limits)
    output = RobotOutput(node, context, parameters, lambda: None)
    wish = np.zeros(SPEC.action_size, np.float32)
    wish[SPEC.action_slices["gripper"]], wish[0] = np.nan, 0.05
    path_m, begin_s, sent = [0.9], 100.0, node.create_publisher.return_value.publish
    for command in range(100):
        at = max(0, command - old)
        pose = np.array([path_m[at], 0, 1, 0, 0, 0, 1], np.float32)
        seen_ns = round((begin_s + at * PERIOD_S) * 1e9)
        seen = StampedObservation({"ee_pose": pose, "joint_positions": np.zeros(9)}, 0, seen_ns)
        output._inputs = MagicMock(observation=lambda seen=seen: seen)
        now_ns = round((begin_s + command * PERIOD_S) * 1e9)
        node.get_clock.return_value.now.return_value = Time(nanoseconds=now_ns)
        sent.reset_mock()
        output.send(wish)
        twists = [call.args[0] for call in sent.call_args_list if hasattr(call.args[0], "twist")]
        speed_m_s = max(message.twist.linear.x for message in twists)
        path_m.append(path_m[-1] + speed_m_s * PERIOD_S)
    assert 0.99 < path_m[-1] <= max(path_m) <= 1.0 + 1e-6


def test_the_robot_waits_for_a_description_that_is_published() -> None:
    parameters, node = TeleopParameters(), MagicMock()
    node.count_publishers = lambda topic: topic == "robot_description"
    context = TeleopContext(load_contract(), SPEC, parameters.limits)
    output = RobotOutput(node, context, parameters, lambda: None)
    assert "robot_description is published, but has not come yet" in output.problem


@pytest.mark.parametrize(("listeners", "speeds"), [(1, [0.01, 0.01]), (2, [0.01, 0.02])])
def test_a_command_that_nobody_heard_counts_as_none(listeners: int, speeds: list[float]) -> None:
    """listeners: this node itself, and perhaps the robot, whose base goes on getting faster."""
    parameters, node = TeleopParameters(), MagicMock()
    publisher = node.create_publisher.return_value
    publisher.get_subscription_count.return_value = listeners
    limits = {**parameters.limits, "max_forward_accel_m_s2": 0.01 / PERIOD_S}
    context = TeleopContext(load_contract(), SPEC, limits)
    output = RobotOutput(node, context, parameters, lambda: None)
    output._inputs = MagicMock(
        observation=lambda: StampedObservation({"joint_positions": np.zeros(9)}, 0, 0)
    )
    node.get_clock.return_value.now.return_value = Time(nanoseconds=0)
    wish = np.zeros(SPEC.action_size, np.float32)
    wish[SPEC.action_slices["gripper"]], wish[SPEC.action_slices["base"].start] = np.nan, 0.3
    sent = []
    for _ in speeds:
        publisher.publish.reset_mock()
        output.send(wish)
        messages = [call.args[0] for call in publisher.publish.call_args_list]
        sent.append(max(m.twist.linear.x for m in messages if hasattr(m, "twist")))
    assert sent == pytest.approx(speeds)
