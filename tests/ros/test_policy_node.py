"""policy_node in a process of its own over DDS: its memory, and what stops the robot."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from node_process import WAIT_S
from std_srvs.srv import Trigger

from ttm.policy import PRESETS, Policy, PolicyRunner, save_checkpoint
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.messages import ResetReply, read_reset_reply

CAN, BOX = "pick up the red can", "pick up the blue box"
MOTION_TOPICS = ("cmd_vel", "servo_node/delta_twist_cmds")


def _is_zero(message: Any) -> bool:
    twist = message.twist
    parts = (
        twist.linear.x,
        twist.linear.y,
        twist.linear.z,
        twist.angular.x,
        twist.angular.y,
        twist.angular.z,
    )
    return not any(parts)


def _in_process(
    checkpoint: Any, observations: list[Any], instruction: str, engine: Any = "auto"
) -> list[np.ndarray]:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine=engine)
    runner.reset(instruction)
    return [runner.step(observation).values for observation in observations]


def test_memory_lives_for_the_whole_episode_and_actions_are_those_in_process(
    robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    start_node("policy_node", checkpoint=str(checkpoint), lockstep=True)
    robot.begin_episode(CAN)
    expected = _in_process(checkpoint, observations, CAN)
    for tick, (observation, action) in enumerate(zip(observations, expected, strict=True), start=1):
        assert np.array_equal(robot.step(observation), action)
        assert np.array_equal(
            robot.commanded(), action
        )  # commands within the limits have the same bits
        assert robot.memories[-1][0] == tick
        robot.instruct(CAN)  # the same instruction again resets nothing

    robot.instruct(BOX)
    robot.wait(lambda: robot.memories[-1][0] == 0, "the empty memory")
    assert np.array_equal(
        robot.step(observations[0]), _in_process(checkpoint, observations[:1], BOX)[0]
    )
    robot.begin_episode(BOX)
    assert robot.memories[-1][0] == 0
    assert not robot.memories[-1][1:].any()


def test_respawned_process_goes_on_where_the_killed_one_was(
    robot: Any, start_node: Any, checkpoint: Any, observations: list[Any], tmp_path: Any
) -> None:
    parameters = {
        "checkpoint": str(checkpoint),
        "engine": "torch",
        "lockstep": True,
        "snapshot_path": str(tmp_path / "memory.npz"),
    }
    first = start_node("policy_node", **parameters)
    robot.begin_episode(CAN)
    expected = _in_process(checkpoint, observations[:4], CAN, "torch")
    for observation in observations[:3]:
        robot.step(observation)
    assert robot.call("snapshot_memory").success
    robot.executed = robot.commanded()  # and not the zero that the second process begins with
    first.send(signal.SIGKILL)
    first.wait()

    robot.memories.clear()
    start_node("policy_node", **parameters, autostart=False)
    assert robot.transition(Transition.TRANSITION_CONFIGURE)
    assert robot.call("restore_memory").success
    assert robot.transition(Transition.TRANSITION_ACTIVATE)
    assert np.array_equal(robot.step(observations[3]), expected[3])
    assert robot.memories[-1][0] == 4


def test_e_stop_and_deactivation_end_with_zero_commands(
    robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    process = start_node("policy_node", checkpoint=str(checkpoint), engine="torch", lockstep=True)
    robot.begin_episode(CAN)
    robot.step(observations[0])
    assert not _is_zero(robot.commands["cmd_vel"][-1])

    robot.press_e_stop(True)
    robot.wait(
        lambda: all(_is_zero(robot.commands[topic][-1]) for topic in MOTION_TOPICS), "zero commands"
    )
    robot.time_ns += 200_000_000
    robot.observe(observations[1])
    robot.settle()
    assert len(robot.actions) == 1
    assert not robot.call("rearm").success  # it is still pressed
    robot.press_e_stop(False)
    robot.wait(lambda: "released" in robot.diagnosis, "the release")
    assert len(robot.actions) == 1
    assert robot.call("rearm").success
    robot.wait(lambda: len(robot.actions) == 2, "the tick after the e-stop")

    for end in ("deactivate", "signal"):
        if end == "deactivate":
            assert robot.transition(Transition.TRANSITION_DEACTIVATE)
        else:
            process.send(signal.SIGTERM)
        robot.wait(
            lambda: all(_is_zero(robot.commands[topic][-1]) for topic in MOTION_TOPICS), "the stop"
        )
        if end == "deactivate":
            robot.settle()
            assert all(_is_zero(robot.commands[topic][-1]) for topic in MOTION_TOPICS)
            assert robot.transition(Transition.TRANSITION_ACTIVATE)
            robot.step(observations[2])
            assert robot.memories[-1][0] == 3  # deactivation keeps the memory
    assert process.wait() == 0


def test_late_frames_hold_then_stop_and_write_no_memory(
    free_robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    robot = free_robot
    start_node(
        "policy_node",
        checkpoint=str(checkpoint),
        engine="torch",
        instruction=CAN,
        use_sim_time=True,
        max_age_s=8.0,  # a busy machine answers later than a robot may
        stop_after_s=600.0,
    )
    robot.wait(lambda: bool(robot.memories), "the policy")

    def fresh() -> None:
        robot.run_freely(observations[0])

    def late() -> None:
        robot.run_freely(observations[1], age_ns=9_500_000_000)

    def until(done: Any, let_pass: Any, what: str) -> None:
        robot.wait(lambda: (let_pass(), done())[1], what)

    def without_ticks(let_pass: Any) -> None:
        """What the network has in hand may still come, and then nothing does."""

        def periods_pass() -> bool:
            before = len(robot.actions), len(robot.memories)
            for _ in range(4):
                let_pass()
            robot.settle()
            return before == (len(robot.actions), len(robot.memories))

        robot.wait(periods_pass, "four periods without a tick")
        assert all(_is_zero(robot.commands[topic][-1]) for topic in MOTION_TOPICS)

    until(lambda: len(robot.actions) >= 2, fresh, "ticks")
    until(lambda: "holding" in robot.diagnosis, late, "the hold")
    assert "s old" in robot.diagnosis
    without_ticks(late)
    acted, memory = len(robot.actions), robot.memories[-1]

    until(lambda: len(robot.actions) > acted, fresh, "ticks again, by themselves")
    robot.wait(lambda: robot.memories[-1][0] > memory[0], "the memory")

    assert robot.set_parameters(stop_after_s=0.5) == [(True, "")]
    until(lambda: "stopped" in robot.diagnosis, late, "the stop")
    assert robot.set_parameters(stop_after_s=600.0) == [(True, "")]
    without_ticks(fresh)
    acted, memory = len(robot.actions), robot.memories[-1]
    # One memory write for each action; what the network had in hand at a stop is not sent.
    assert 0 <= memory[0] - acted <= 2

    assert robot.call("reset_memory").success
    until(lambda: len(robot.actions) > acted, fresh, "ticks after the reset")
    robot.wait(lambda: robot.memories[-1][0] < memory[0], "the memory of another episode")


def test_without_a_robot_it_says_what_it_waits_for_and_goes_on(
    checkpoint: Path, start_node: Any
) -> None:
    node = start_node("policy_node", checkpoint=str(checkpoint), engine="torch")
    deadline_s = time.monotonic() + WAIT_S
    while "the robot does not move yet" not in node.output:
        assert node.exit_code is None, node.output
        assert time.monotonic() < deadline_s, node.output
        time.sleep(0.05)
    (said,) = (line for line in node.output.splitlines() if "does not move yet" in line)
    assert "head (/head/image_raw), wrist (/wrist/image_raw)" in said
    assert said.endswith("nobody publishes them; no instruction; publish one on /instruction")
    assert node.end() == 0


def test_a_policy_of_one_camera_and_no_proprioception_runs(
    robot: Any, start_node: Any, observations: list[Any], tmp_path: Path
) -> None:
    """As `ttm train --cameras head --proprioception none` makes it; the robot has more."""
    policy = Policy(replace(SPEC, cameras=SPEC.cameras[:1], proprioception=()), PRESETS["tiny"])
    policy.known_instructions = {CAN: np.full(384, 0.05, np.float32)}
    path = tmp_path / "head.safetensors"
    save_checkpoint(path, policy, {})
    start_node("policy_node", checkpoint=str(path), lockstep=True)
    robot.begin_episode(CAN)
    expected = _in_process(path, observations[:3], CAN)
    for observation, action in zip(observations[:3], expected, strict=True):
        assert np.array_equal(robot.step(observation), action)


@pytest.mark.parametrize("instruction", ["pick up the red can", 'say "hé"\nand: {stop}', ""])
def test_a_reply_survives_the_service(instruction: str) -> None:
    reply = ResetReply(instruction, tick=0)
    response = Trigger.Response(success=True, message=reply.to_json())
    assert read_reset_reply(response) == reply


@pytest.mark.parametrize(
    ("success", "message"),
    [
        (False, ResetReply("pick up the red can").to_json()),
        (True, "memory is empty"),
        (True, "[]"),
        (True, '{"instruction": "pick up the red can"}'),
        (True, '{"instruction": "pick up the red can", "tick": null}'),
    ],
)
def test_refusals_and_other_answers_confirm_nothing(success: bool, message: str) -> None:
    assert read_reset_reply(Trigger.Response(success=success, message=message)) is None
