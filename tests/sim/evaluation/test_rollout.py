"""One closed-loop episode, in a world of one dimension: drive a point to the origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec
from ttm.sim.rollout import run_episode

SPEC = PolicySpec(
    robot="point",
    cameras=(),
    proprioception=(ProprioceptionSpec("position", ("x (m)",)),),
    actions=(
        ActionPart("step", 1, "m"),
        ActionPart("terminate", 1, "", kind="binary", low=0, high=1),
    ),
    rate_hz=5.0,
)


class PointEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A point starts `seed` metres from the origin; within 0.1 m is success; 8 ticks are the limit."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.x_m, self.ticks = float(seed or 0), 0
        self.instruction = f"{(options or {})['task']} from {seed}"
        return self._observe(), self._info()

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.x_m += float(action[0])
        self.ticks += 1
        success = abs(self.x_m) < 0.1
        return self._observe(), float(success), success, self.ticks >= 8, self._info()

    def _observe(self) -> dict[str, np.ndarray]:
        return {"position": np.array([self.x_m], np.float32)}

    def _info(self) -> dict[str, Any]:
        return {"instruction": self.instruction, "success": abs(self.x_m) < 0.1, "tick": self.ticks}


class Walker:
    """Walks home by a metre a tick; says that it is done from its `done_tick`-th action on."""

    def __init__(self, done_tick: int = 100):
        self.done_tick = done_tick
        self.instructions: list[str] = []

    def reset(self, instruction: str) -> None:
        self.instructions.append(instruction)
        self.ticks = 0

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        self.ticks += 1
        step_m = -min(1.0, float(observation["position"][0]))
        return np.array([step_m, self.ticks >= self.done_tick], np.float32)

    def executed(self, action: np.ndarray) -> None:
        raise AssertionError("this environment does not say what was executed")


def test_success_ends_the_episode_at_the_tick_it_happens() -> None:
    walker = Walker()
    outcome = run_episode(PointEnv(), walker, spec=SPEC, task="home", seed=3)
    assert (outcome.success, outcome.ticks, outcome.terminate_tick) == (True, 3, None)
    assert (outcome.task, outcome.seed, outcome.instruction) == ("home", 3, "home from 3")
    assert walker.instructions == ["home from 3"]


def test_time_limit_of_the_environment_is_a_failure() -> None:
    outcome = run_episode(PointEnv(), Walker(), spec=SPEC, task="home", seed=20)
    assert (outcome.success, outcome.ticks) == (False, 8)


def test_max_ticks_ends_earlier() -> None:
    outcome = run_episode(PointEnv(), Walker(), spec=SPEC, task="home", seed=3, max_ticks=2)
    assert (outcome.success, outcome.ticks) == (False, 2)


@pytest.mark.parametrize(("seed", "success"), [(5, True), (20, False)])
def test_the_policys_own_word_is_noted_and_not_believed(seed: int, success: bool) -> None:
    outcome = run_episode(PointEnv(), Walker(done_tick=2), spec=SPEC, task="home", seed=seed)
    assert outcome.terminate_tick == 2
    assert outcome.success is success


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 0.08), (1, 2)])
def test_any_two_commands_can_say_that_it_is_done(low: float, high: float) -> None:
    class Other(Walker):
        def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
            step_m, done = super().act(observation)
            return np.array([step_m, high if done else low], np.float32)

    terminate = ActionPart("terminate", 1, "", kind="binary", low=low, high=high)
    spec = replace(SPEC, actions=(SPEC.actions[0], terminate))
    outcome = run_episode(PointEnv(), Other(done_tick=3), spec=spec, task="home", seed=5)
    assert outcome.terminate_tick == 3


def test_every_observation_is_shown() -> None:
    seen: list[tuple[float, int]] = []
    run_episode(
        PointEnv(), Walker(), spec=SPEC, task="home", seed=2,
        on_tick=lambda observation, info: seen.append((float(observation["position"][0]), info["tick"])),
    )  # fmt: skip
    assert seen == [(2.0, 0), (1.0, 1), (0.0, 2)]
