"""The picture of what a policy's memory did: what it is drawn from."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ttm.policy import PRESETS, Policy, PolicyRunner
from ttm.sim import memory_picture
from ttm.sim.actors import PolicyActor
from ttm.sim.memory_picture import EpisodeMemory, SeenEpisode
from ttm.sim.rollout import Outcome


class Drawn(Exception):
    """What would be drawn is known."""


def test_the_replay_is_told_the_delay_of_the_episode(
    points: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(points.MemoryPointEnv.policy_spec, PRESETS["tiny"])
    actor = PolicyActor(PolicyRunner(policy, engine="torch"), {})
    actor.delay_s = 0.2
    memory = EpisodeMemory(actor)
    for tick in range(2):
        seen = {"above": np.zeros((8, 8, 3), np.uint8), "position": np.zeros(1, np.float32)}
        memory.on_tick(seen, {"tick": tick})

    def stop(self: PolicyRunner, observation: object, *, delay_s: float = 0.0) -> None:
        assert delay_s == 0.2
        raise Drawn

    monkeypatch.setattr(PolicyActor, "embedding", lambda self, _: np.zeros(384, np.float32))
    monkeypatch.setattr(PolicyRunner, "step", stop)
    with pytest.raises(Drawn):
        memory.draw(tmp_path / "a.webp", Outcome("recall", 0, "touch", False, 1, None), "hidden")


def test_nothing_was_executed_before_the_first_tick(
    points: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the environment's `reset` says that the robot stands still."""
    policy = Policy(points.MemoryPointEnv.policy_spec, PRESETS["tiny"])
    memory = EpisodeMemory(PolicyActor(PolicyRunner(policy, engine="torch"), {}))
    for tick in range(4):
        seen = {"above": np.zeros((8, 8, 3), np.uint8), "position": np.zeros(1, np.float32)}
        memory.on_tick(seen, {"tick": tick, "executed_action": np.full(2, tick, np.float32)})

    def stop(_: Policy, episode: SeenEpisode) -> None:
        assert episode.executed is not None
        assert episode.executed.tolist() == [[1, 1], [2, 2], [3, 3]]
        raise Drawn

    monkeypatch.setattr(memory_picture, "trace_memory", stop)
    with pytest.raises(Drawn):
        memory.draw(tmp_path / "a.webp", Outcome("recall", 0, "touch", False, 3, None), "hidden")


def test_it_holds_what_the_policy_saw(points: ModuleType) -> None:
    policy = Policy(points.MemoryPointEnv.policy_spec, PRESETS["tiny"])
    memory = EpisodeMemory(PolicyActor(PolicyRunner(policy, engine="torch"), {}))
    seen = {"above": np.zeros((16, 24, 3), np.uint8), "position": np.zeros(1, np.float32)}
    memory.on_tick(seen, {"tick": 0})
    assert memory._seen["above"][0].shape == (8, 8, 3)
