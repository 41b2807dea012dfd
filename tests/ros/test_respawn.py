"""A policy process that is killed and started again, as a launch file with respawn:=true does it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from ttm.policy import PolicyRunner
from ttm.policy.snapshot import snapshot_from_bytes

CAN = "pick up the red can"
BOX = "pick up the blue box"


@pytest.fixture
def remembering(checkpoint: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The file in which a policy keeps its memory, and the parameters that let it."""
    path = tmp_path / "memory.npz"
    parameters = {
        "checkpoint": str(checkpoint),
        "engine": "torch",
        "lockstep": True,
        "recovery_path": str(path),
        "recovery_max_age_s": 600.0,  # a busy machine takes long to start a process
    }
    return path, parameters


def test_a_killed_policy_goes_on_by_itself_unless_it_was_deactivated(
    robot: Any, start_node: Any, remembering: Any, checkpoint: Path, observations: list[Any]
) -> None:
    path, parameters = remembering
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    expected = [runner.step(observation).values for observation in observations[:4]]

    first = start_node("policy_node", **parameters)
    robot.begin_episode(CAN)
    for observation in observations[:3]:
        robot.step(observation)
    robot.wait(lambda: _saved_tick(path) == 3, "the file")
    first.send(signal.SIGKILL)
    first.wait()
    robot.diagnosis = ""
    second = start_node("policy_node", **parameters)
    robot.wait(lambda: robot.diagnosis == "waiting for the first observation", "the second process")
    robot.executed = expected[2]  # the robot stood still afterwards, for want of commands
    assert np.array_equal(robot.step(observations[3]), expected[3])
    assert robot.memories[-1][0] == 4

    assert robot.transition(Transition.TRANSITION_DEACTIVATE)
    second.send(signal.SIGKILL)
    second.wait()
    robot.diagnosis = ""
    third = start_node("policy_node", **parameters)
    robot.wait(lambda: robot.diagnosis.startswith("inactive"), "the third process, inactive")
    assert robot.transition(Transition.TRANSITION_ACTIVATE)
    assert third.end() == 0
    assert not list(path.parent.glob("memory*")), "an orderly end leaves nothing to go on with"


def test_a_killed_policy_waits_for_a_person_where_it_is_told_to(
    robot: Any, start_node: Any, remembering: Any, checkpoint: Path, observations: list[Any]
) -> None:
    """Then it goes on where it was. Neither observations nor an activation move the robot before."""
    path, parameters = remembering
    parameters["resume_after_crash"] = "never"
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    expected = [runner.step(observation).values for observation in observations[:3]]
    first = start_node("policy_node", **parameters)
    robot.begin_episode(CAN)
    for observation in observations[:2]:
        robot.step(observation)
    robot.wait(lambda: _saved_tick(path) == 2, "the file")
    first.send(signal.SIGKILL)
    first.wait()
    robot.diagnosis = ""
    second = start_node("policy_node", **parameters)
    robot.wait(lambda: "the policy crashed" in robot.diagnosis, "the second process")
    robot.actions.clear()
    robot.executed = expected[1]
    robot.time_ns += 200_000_000
    robot.observe(observations[2])
    assert robot.transition(Transition.TRANSITION_DEACTIVATE)
    assert robot.transition(Transition.TRANSITION_ACTIVATE)
    robot.settle()
    assert not robot.actions
    assert "call the service rearm" in robot.diagnosis
    assert robot.call("rearm").success
    robot.wait(lambda: bool(robot.actions), "the action")
    assert np.array_equal(robot.actions[-1], expected[2])
    robot.wait(lambda: robot.diagnosis.startswith("running"), "the end of the hold")
    assert second.end() == 0
    assert "after rearm it goes on at tick 2" in second.output


def _saved_tick(path: Path) -> int:
    return int(snapshot_from_bytes(path.read_bytes())["tick"])


def test_an_instruction_is_heard_from_ros2_topic_pub(
    robot: Any, start_node: Any, checkpoint: Path, observations: list[Any]
) -> None:
    """`ros2 topic pub` keeps nothing for late subscribers, unlike planners."""
    start_node("policy_node", checkpoint=str(checkpoint), engine="torch", lockstep=True)
    robot.wait(lambda: bool(robot.memories), "the policy")
    for reliability, text in (
        (ReliabilityPolicy.RELIABLE, CAN),
        (ReliabilityPolicy.BEST_EFFORT, BOX),
    ):
        typed = robot.create_publisher(
            String, "instruction", QoSProfile(depth=10, reliability=reliability)
        )
        robot.wait(lambda typed=typed: typed.get_subscription_count() >= 1, "the policy")
        robot.memories.clear()

        def heard(typed: Any = typed, text: str = text) -> bool:
            """The message is sent again, since the policy may know the publisher later than that it."""
            if not robot.memories:
                typed.publish(String(data=text))
            return bool(robot.memories) and robot.memories[-1][0] == 0

        robot.wait(heard, "the reset")
        robot.step(observations[0])
        assert robot.memories[-1][0] == 1, "the second copy of the message resets nothing"
