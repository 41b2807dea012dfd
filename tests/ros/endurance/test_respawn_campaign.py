"""The campaign of kills: when it kills, and what it compares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import respawn_campaign
from respawn_campaign import Killer, RespawnCampaign

from ttm.policy import UserError
from ttm.policy.snapshot import snapshot_to_bytes
from ttm.sim import Evaluation
from ttm.sim.results import TaskResult
from ttm.sim.rollout import Outcome
from ttm_policy.parameters import PolicyParameters, SimParameters


def test_one_kill_in_each_episode_at_ticks_that_the_seed_gives(tmp_path: Path) -> None:
    def kills(seed: int) -> list[tuple[int, int]]:
        killer = Killer(tmp_path / "none", seed=seed, latest_tick=10)
        return [
            (episode, tick)
            for episode in range(20)
            for tick in (0, 0, *range(13), 12)  # a respawned policy saves its last tick again
            if killer.is_due(tick)
        ]

    found = kills(0)
    assert [episode for episode, _ in found] == list(range(20))
    assert {tick for _, tick in found} <= set(range(1, 11))
    assert len({tick for _, tick in found}) > 4
    assert kills(0) == found != kills(1)


def test_a_short_episode_is_spared_and_counts_for_the_next_one(tmp_path: Path) -> None:
    killer = Killer(tmp_path / "none", seed=0, latest_tick=1000)
    assert not any(killer.is_due(tick) for tick in (0, 1, 2, 0, 1, 2))


def test_the_process_is_killed_at_the_tick_in_the_file(tmp_path: Path) -> None:
    path, process = (
        tmp_path / "memory.npz",
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]),
    )
    killer = Killer(path, seed=0, latest_tick=1)
    killer.look(process)  # no file yet
    path.write_bytes(b"half a file")
    killer.look(process)
    path.write_bytes(snapshot_to_bytes({"tick": np.array(0)}))
    killer.look(process)
    assert process.poll() is None
    path.write_bytes(snapshot_to_bytes({"tick": np.array(1)}))
    killer.look(process)
    assert process.poll() == -9
    assert killer.kills == 1


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="episodes"):
        RespawnCampaign(episodes=0).check()


def test_without_a_task_the_rates_are_those_of_the_one_that_the_simulator_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(
        policy: PolicyParameters, sim: SimParameters, *, respawn: bool, watch: Callable[[Any], None]
    ) -> int:
        for tick in (0, 1):
            Path(policy.recovery_path).write_bytes(snapshot_to_bytes({"tick": np.array(tick)}))
            watch(SimpleNamespace(kill=lambda: None, wait=lambda: None))
        pick = TaskResult("pick", (Outcome("pick", 0, "wave", True, 9, None),))
        Evaluation("none", None, 0, None, {"pick": pick}).save(Path(sim.out))
        return 0

    monkeypatch.setattr(respawn_campaign, "drive_simulation", drive)
    assert RespawnCampaign(task="", latest_tick=1, out=tmp_path).run() == 0
    assert "killed 1 times: " in capsys.readouterr().out
