"""Runs the episodes of a simulated robot, and reports and saves their results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ttm.sim.environment import Env, resting_action_of
from ttm.sim.evaluation.delay import delayed, forget_commands
from ttm.sim.evaluation.result import Evaluation, TaskResult
from ttm.sim.evaluation.rollout import Actor, Outcome, run_episode
from ttm.sim.evaluation.video import EpisodeVideo
from ttm_policy.simulator.actors import FreeRunningActor, LockstepActor
from ttm_policy.simulator.robot_node import SimNode
from ttm_policy.stop_signals import StopSignals


class Episodes:
    """Runs the numbered initial states that the parameters of `node` ask for."""

    def __init__(self, node: SimNode, env: Env, signals: StopSignals):
        self._node, self._env = node, env
        kind = LockstepActor if node.parameters.lockstep else FreeRunningActor
        self.actor: LockstepActor | FreeRunningActor = kind(node, signals)
        self._actions: dict[str, np.ndarray] = {}
        self._late: Actor = self.actor
        self._to_erase = False

    def run(self) -> TaskResult:
        """Run all episodes. Write result.json and actions.npz if the parameters ask for it."""
        parameters = self._node.parameters
        result = TaskResult(
            parameters.task, tuple(self._run_one(index) for index in range(parameters.episodes))
        )
        if parameters.out:
            self._save(Path(parameters.out), result)
        return result

    def _save(self, folder: Path, result: TaskResult) -> None:
        """Write the result as `ttm evaluate` does, and all actions, to compare runs bit by bit."""
        parameters = self._node.parameters
        tasks = {parameters.task: result}
        Evaluation(
            "over ROS 2",
            None,
            parameters.first_seed,
            parameters.max_ticks or None,
            tasks,
            parameters.env,
            parameters.condition,
        ).save(folder)
        np.savez(folder / "actions.npz", **self._actions)  # type: ignore[arg-type]

    def _run_one(self, index: int) -> Outcome:
        parameters = self._node.parameters
        seed = parameters.first_seed + index
        self._late = delayed(self.actor, self._env, parameters.command_delay_s)
        recorder = _RecordingActor(self._late)
        self._to_erase = parameters.probe == "erase"
        with ExitStack() as stack:
            video = None
            if parameters.video and index == 0:
                video = stack.enter_context(
                    EpisodeVideo(Path(parameters.video), self._node.spec.rate_hz)
                )
            outcome = run_episode(
                self._env,
                recorder,
                spec=self._node.spec,
                task=parameters.task,
                seed=seed,
                max_ticks=parameters.max_ticks or None,
                on_tick=lambda observation, info: self._on_tick(observation, info, seed, video),
                gap=parameters.condition.gap,
            )
        self._actions[f"seed_{seed}"] = np.array(recorder.actions, dtype=np.float32)
        ended = "success" if outcome.success else "no success"
        speed = ""
        if isinstance(self.actor, FreeRunningActor):
            speed = f", {self.actor.speed():.3f} simulated seconds per second"
        self._node.say(
            f"episode {index + 1} of {parameters.episodes}: {ended} after {outcome.ticks} ticks{speed}"
        )
        return outcome

    def _on_tick(
        self,
        observation: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
        seed: int,
        video: EpisodeVideo | None,
    ) -> None:
        """Show the tick, and do to the memory what the probe says, before the policy acts."""
        if info["tick"] == 0:
            self._node.commands.resting = resting_action_of(self._env)
        self._tell(info, seed)
        if video:
            cameras = {camera.name: observation[camera.name] for camera in self._node.spec.cameras}
            video.add(np.asarray(self._env.render()), cameras, info)
        if self._to_erase and info.get("go"):
            self.actor.erase_memory()
            forget_commands(self._late)
            self._to_erase = False

    def _tell(self, info: Mapping[str, Any], seed: int) -> None:
        """Publish how the episode stands, and print a line now and then."""
        self._node.publish_episode({**info, "seed": seed})
        if info["tick"] == 0:
            self._node.say(f"initial state {seed}: {info['instruction']}")
        elif info["tick"] % round(self._period_s() * self._node.spec.rate_hz) == 0:
            self._node.say(
                f"  tick {info['tick']:4d}  {info['time_s']:6.1f} s  {self._node.describe_memory()}"
            )

    def _period_s(self) -> float:
        """Return the simulated seconds between two printed lines: fewer lines for many episodes."""
        return 1.0 if self._node.parameters.episodes == 1 else 5.0


class _RecordingActor:
    """Keeps the actions (A,) of another actor in `actions`."""

    def __init__(self, actor: Actor):
        self._actor = actor
        self.actions: list[np.ndarray] = []

    def reset(self, instruction: str) -> None:
        self._actor.reset(instruction)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        self.actions.append(self._actor.act(observation))
        return self.actions[-1]

    def executed(self, action: np.ndarray) -> None:
        self._actor.executed(action)
