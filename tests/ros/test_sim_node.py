"""The simulated robot over ROS 2, with both nodes as processes, as `ttm robot --sim` runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ttm.policy import PolicyRunner
from ttm.policy.config import EngineName
from ttm.sim import KitchenEnv, load_evaluation, make_env
from ttm.sim.actors import PolicyActor
from ttm.sim.condition import KITCHEN, Condition
from ttm.sim.environment import inspect_env
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.probes import PROBES, Trial
from ttm.sim.rollout import Actor, Outcome, delayed, run_episode
from ttm.training.robot.robot import RobotCommand
from ttm_policy.simulator.robot import episode_json

TICKS, DELAY_S = 6, 0.3
PATIENT: Any = {"startup_timeout_s": 600.0, "command_timeout_s": 600.0}  # for a busy machine


class _Recorder:
    """Keeps the actions of an actor in the current episode."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def reset(self, instruction: str) -> None:
        self._actor.reset(instruction)
        self.actions: list[np.ndarray] = []

    def act(self, observation: Any) -> np.ndarray:
        self.actions.append(self._actor.act(observation))
        return self.actions[-1]

    def executed(self, action: np.ndarray) -> None:
        self._actor.executed(action)


def _policy(checkpoint: Path, engine: EngineName = "auto") -> PolicyActor:
    return PolicyActor(PolicyRunner.from_checkpoint(checkpoint, engine=engine), {})


def _in_process(
    checkpoint: Path, seeds: list[int], varied: Condition
) -> tuple[list[Outcome], list[np.ndarray]]:
    env, actor = KitchenEnv(), _Recorder(_policy(checkpoint))
    outcomes, actions = [], []
    given: Any = {"spec": SPEC, "task": "pick", "max_ticks": TICKS, "vary": varied.levels}
    for seed in seeds:
        outcomes.append(run_episode(env, actor, seed=seed, **given))
        actions.append(np.array(actor.actions))
    env.close()
    return outcomes, actions


def test_lockstep_over_ros_is_the_run_in_process_bit_by_bit(
    checkpoint: Path, tmp_path: Path
) -> None:
    # Both ask for the same object: the memory must be reset without a new instruction.
    seeds = [1, 2]
    command = RobotCommand(
        sim=True, checkpoint=checkpoint, task="pick", seed=1, episodes=2, max_ticks=TICKS,
        vary="1", out=tmp_path, video=tmp_path / "episode.mp4", **PATIENT,
    )  # fmt: skip
    assert command.run() == 0
    varied = Condition(vary=inspect_env(KITCHEN).variant(["1"]))
    outcomes, actions = _in_process(checkpoint, seeds, varied)
    evaluation = load_evaluation(tmp_path)
    assert evaluation.condition == varied
    assert evaluation.tasks["pick"].outcomes == tuple(outcomes)
    with np.load(tmp_path / "actions.npz") as recorded:
        for seed, expected in zip(seeds, actions, strict=True):
            assert np.array_equal(recorded[f"seed_{seed}"], expected)
    assert (tmp_path / "episode.mp4").stat().st_size > 0


def test_an_erased_memory_and_late_commands_over_ros_are_those_in_process_bit_by_bit(
    checkpoint: Path, tmp_path: Path
) -> None:
    env, policy = make_env(), _policy(checkpoint, "torch")
    late = delayed(policy, env, DELAY_S)
    actor = _Recorder(late)
    actions, outcomes = {}, []
    for condition in (Condition(1, delay_s=DELAY_S), Condition(1, "erase", delay_s=DELAY_S)):
        trial = Trial(env, policy, "side_shown", 3, condition, late=late)
        probe = PROBES[condition.probe](trial)
        outcomes.append(
            run_episode(
                env, actor, spec=SPEC, task="side_shown", seed=3, max_ticks=9, gap=1,
                on_tick=lambda _, info, probe=probe: probe.before_tick(info["tick"], info["go"]),
            )
        )  # fmt: skip
        actions[condition.probe] = np.array(actor.actions)
    env.close()
    choice = outcomes[1].choice
    assert choice is not None
    assert choice.go_tick is not None
    assert np.array_equal(actions["live"][: choice.go_tick], actions["erase"][: choice.go_tick])
    assert not np.array_equal(actions["live"], actions["erase"])
    command = RobotCommand(
        sim=True, checkpoint=checkpoint, engine="torch", task="side_shown", gap=1, probe="erase",
        seed=3, max_ticks=9, command_delay_s=DELAY_S, out=tmp_path, **PATIENT,
    )  # fmt: skip
    assert command.run() == 0
    evaluation = load_evaluation(tmp_path)
    assert evaluation.condition == Condition(1, "erase", delay_s=DELAY_S)
    assert evaluation.tasks["side_shown"].outcomes == (outcomes[1],)
    with np.load(tmp_path / "actions.npz") as recorded:
        assert np.array_equal(recorded["seed_3"], actions["erase"])


def test_ctrl_c_ends_both_processes_and_stops_the_robot(checkpoint: Path) -> None:
    code = "import sys; from pathlib import Path; "
    code += "from ttm.training.robot.robot import RobotCommand; "
    code += "RobotCommand(sim=True, free_running=True, checkpoint=Path(sys.argv[1]), engine='torch').run()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "tick" in line:
            break
    process.send_signal(signal.SIGINT)
    # This returns when both nodes have closed their ends of the pipes.
    _, errors = process.communicate(timeout=180)
    assert "the policy is stopped, and then the robot" in errors


def test_a_silent_policy_is_an_error_after_the_time_out(start_node: Any) -> None:
    process = start_node("sim_node", startup_timeout_s=0.5)
    assert process.wait() == 1
    assert "no service policy_node/reset_memory" in process.output
    assert "the simulated robot is stopped" in process.output


def test_the_info_of_any_environment_becomes_json() -> None:
    """Other simulators fill it with values of NumPy, and with objects of their own."""
    info = {"success": np.bool_(True), "tick": np.int64(3), "pose": np.ones(2), "path": Path("a")}
    expected = {"success": True, "tick": 3, "pose": [1.0, 1.0], "path": "a"}
    assert json.loads(episode_json(info)) == expected
