"""policy_node over DDS: it stays free while the network and the language model work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CAN, UNKNOWN = "pick up the red can", "knock over the elephant"
PARAMETERS = {
    "engine": "torch",
    "instruction": CAN,
    "use_sim_time": True,
    "stop_after_s": 600.0,  # a busy machine is no fault here
}


def _tick_freely(robot: Any, observation: Any) -> None:
    """Let time pass until the policy acts."""
    acted = len(robot.actions)
    robot.wait(lambda: (robot.run_freely(observation), len(robot.actions) > acted)[1], "a tick")


def test_the_node_answers_while_a_never_seen_instruction_is_prepared(
    free_robot: Any,
    start_node: Any,
    checkpoint: Path,
    observations: list[Any],
    language_model: Path,
) -> None:
    """The stand-in of the language model takes as long as the test wants, so an answer is proof."""
    robot = free_robot
    start_node("policy_node", checkpoint=str(checkpoint), **PARAMETERS)
    robot.wait(lambda: bool(robot.memories), "the policy")
    _tick_freely(robot, observations[0])

    (language_model / "wait").touch()
    robot.instruct(UNKNOWN)
    robot.wait(lambda: robot.diagnosis == "preparing a new instruction", "diagnostics")
    assert not robot.commands["cmd_vel"][-1].twist.linear.x  # the old instruction is void

    stops = len(robot.commands["cmd_vel"])
    robot.press_e_stop(True)
    robot.wait(lambda: len(robot.commands["cmd_vel"]) > stops, "zero after the e-stop")
    robot.wait(lambda: "emergency stop" in robot.diagnosis, "diagnostics of the e-stop")
    robot.press_e_stop(False)
    robot.wait(lambda: robot.call("rearm").success, "the e-stop to be armed again")
    assert robot.memories[-1][0] > 0  # the memory of the old instruction is still there

    (language_model / "wait").unlink()
    robot.wait(lambda: robot.memories[-1][0] == 0, "the empty memory")
    _tick_freely(robot, observations[1])
    assert (language_model / "calls").read_text() == f"{UNKNOWN}\n"


def test_an_instruction_without_an_embedding_stands_still_and_says_why(
    free_robot: Any,
    start_node: Any,
    checkpoint: Path,
    observations: list[Any],
    language_model: Path,
) -> None:
    robot = free_robot
    start_node("policy_node", checkpoint=str(checkpoint), **PARAMETERS)
    robot.wait(lambda: bool(robot.memories), "the policy")
    _tick_freely(robot, observations[0])
    (language_model / "fail").touch()
    robot.instruct(UNKNOWN)
    refusal = f"no embedding of the instruction '{UNKNOWN}'"
    robot.wait(lambda: refusal in robot.diagnosis, "the refusal")
    assert "waiting for an instruction" in robot.diagnosis
    acted = len(robot.actions)
    for _ in range(3):
        robot.run_freely(observations[0])
    assert len(robot.actions) == acted
    assert not robot.commands["cmd_vel"][-1].twist.linear.x
    robot.instruct(CAN)
    _tick_freely(robot, observations[0])
