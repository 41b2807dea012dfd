"""What is recorded as executed: the same that a policy in closed loop is told of each tick."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ttm.datasets import EpisodeReader, open_dataset
from ttm.policy import PolicyRunner, save_checkpoint
from ttm.policy.language import embed_instruction
from ttm.sim import make_env
from ttm.sim.actors import PolicyActor, untrained_policy
from ttm.sim.collect import TAKEOVER_TICKS, CollectCommand
from ttm.sim.environment import spec_of
from ttm.sim.rollout import run_episode

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"
GAP = 4
GO_TICK = 2 + GAP
DRIVEN = GO_TICK + TAKEOVER_TICKS[0]
FIRST_SEED = 1_000_037
"""Whose policy drives for the fewest ticks, and not to the expert's side."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's package is. Worker processes inherit the path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


class Noting(PolicyActor):
    """Keeps what it commands and what it is told."""

    def reset(self, instruction: str) -> None:
        super().reset(instruction)
        self.commands: list[np.ndarray] = []
        self.told: list[np.ndarray] = []

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:  # type: ignore[override]
        self.commands.append(super().act(observation))
        return self.commands[-1]

    def executed(self, action: np.ndarray) -> None:
        super().executed(action)
        self.told.append(action)


def collect(out: Path, **options: object) -> EpisodeReader:
    command = CollectCommand(
        out=out, env=MEMORY_POINT, task="recall", episodes=1, workers=1, first_seed=FIRST_SEED,
        gap=GAP, **options,
    )  # type: ignore[arg-type]  # fmt: skip
    assert command.run() == 0
    (episode,) = open_dataset(out)
    return episode


def test_a_roll_out_records_what_the_policy_is_told(tmp_path: Path) -> None:
    env = make_env(MEMORY_POINT)
    policy = untrained_policy(spec_of(env))
    policy.normalizer.actions.mean[0] = 0.7  # its commands exceed the limits, and are no rest
    save_checkpoint(tmp_path / "policy.safetensors", policy, {})
    episode = collect(tmp_path / "out", policy=tmp_path / "policy.safetensors")
    text = "touch the side of the colour"
    actor = Noting(PolicyRunner(policy), {text: embed_instruction(text)})
    run_episode(
        env, actor, spec=spec_of(env), task="recall", seed=FIRST_SEED, gap=GAP,
        max_ticks=DRIVEN,
    )  # fmt: skip
    recorded = episode.executed_actions[:DRIVEN]
    assert np.array_equal(recorded, actor.told)
    assert not recorded[:GO_TICK].any()
    assert all(command.any() for command in actor.commands)
    assert recorded[GO_TICK:].any()


@pytest.mark.parametrize("disturbance", [0.0, 3.0])
def test_a_demonstration_records_the_experts_own_commands(
    tmp_path: Path, disturbance: float
) -> None:
    """A disturbance is known to nobody, and while the robot is held there is none."""
    episode = collect(tmp_path, disturbance=disturbance)
    assert np.array_equal(episode.executed_actions, episode.actions)
    assert not episode.actions[:GO_TICK].any()
