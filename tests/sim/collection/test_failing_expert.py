"""`ttm collect` with an expert that fails: other initial states are tried, but not for ever."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ttm.datasets import open_dataset
from ttm.policy import UserError
from ttm.sim.collect import MOST_FAILURES, CollectCommand

SOLVED_EVERY = 10


class Idle:
    """An expert that never moves."""

    def action(self) -> np.ndarray:
        """Return the (2,) action, whatever the state is."""
        return np.zeros(2, np.float32)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of one whose expert solves one initial state in ten, but none from 1,000 on."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    point: Any = import_module("point_env")

    class UnreliablePointEnv(point.PointEnv):  # type: ignore[misc]
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.seed = seed
            return super().reset(seed=seed, options=options)

        def expert(self) -> Any:
            solves = self.seed < 1_000 and self.seed % SOLVED_EVERY == 0
            return point.PointExpert(self) if solves else Idle()

    name = "test/UnreliablePoint-v0"
    kept = dict(gymnasium.registry)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", kept)
    gymnasium.register(name, entry_point=UnreliablePointEnv, max_episode_steps=point.TICK_LIMIT)
    return name


def collect(env: str, out: Path, **options: Any) -> int:
    return CollectCommand(out=out, env=env, workers=1, disturbance=0.0, **options).run()


def test_an_expert_that_rarely_succeeds_gets_there(environment: str, tmp_path: Path) -> None:
    """More failures than are allowed in a row, but never in a row."""
    episodes = MOST_FAILURES // (SOLVED_EVERY - 1) + 2
    assert collect(environment, tmp_path, episodes=episodes, first_seed=1) == 0
    seeds = [int(episode.seed or 0) for episode in open_dataset(tmp_path)]
    assert sorted(seeds) == [SOLVED_EVERY * number for number in range(1, episodes + 1)]


def test_an_expert_that_succeeds_no_more_is_told_and_what_was_recorded_is_kept(
    environment: str, tmp_path: Path
) -> None:
    with pytest.raises(
        UserError,
        match=rf"^the expert failed in {MOST_FAILURES} episodes of task 'touch' in a row, "
        r"and 1 of 3 are recorded; [^\n]*--disturbance$",
    ):
        collect(environment, tmp_path, episodes=3, first_seed=985)
    assert [path.name for path in tmp_path.iterdir()] == ["touch_demo_990.hdf5"]
