"""`ttm robot --respawn` and `ttm bench respawn` without ROS: processes of a few lines stand for the nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ttm.policy.errors import UserError
from ttm.policy.snapshot import snapshot_to_bytes
from ttm.sim.results import Evaluation, TaskResult
from ttm.sim.rollout import Outcome
from ttm.training.robot import processes
from ttm.training.robot import respawn as bench
from ttm.training.robot.processes import start_after_crash, wait_for_episodes
from ttm.training.robot.respawn import BenchRespawnCommand, Killer, RespawnOptions
from ttm_policy.parameters import PolicyParameters, SimParameters


def _process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


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
    path, process = tmp_path / "memory.npz", _process("import time; time.sleep(600)")
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


@pytest.mark.parametrize(("code", "again"), [("os._exit(1)", True), ("os._exit(2)", False)])
def test_only_a_crash_is_followed_by_another_start(
    code: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESPAWN_DELAY_S", 0.0)
    nodes = {"policy_node": _process(f"import os; {code}")}
    first = nodes["policy_node"]
    first.wait()
    assert start_after_crash(nodes, "policy_node", os.environ) is again
    assert (nodes["policy_node"] is not first) is again
    nodes["policy_node"].wait()


def test_a_running_node_is_left_alone() -> None:
    nodes = {"policy_node": _process("import time; time.sleep(600)")}
    assert not start_after_crash(nodes, "policy_node", os.environ)
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()


def test_the_simulator_goes_on_only_if_the_policy_comes_back() -> None:
    """Without `look`, the crash of the policy is the end; with it, the simulator's code counts."""
    wait, crash = "import time; time.sleep(600)", "import os; os._exit(3)"
    nodes = {"sim_node": _process(wait), "policy_node": _process(crash)}
    assert wait_for_episodes(nodes) == 3

    def look() -> None:
        if nodes["policy_node"].poll() is not None:
            nodes["policy_node"] = _process(wait)
            nodes["sim_node"].terminate()

    nodes["policy_node"].wait()
    assert wait_for_episodes(nodes, look) == -15
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="episodes"):
        BenchRespawnCommand(episodes=0).run()


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

    monkeypatch.setattr(bench, "drive_simulation", drive)
    assert bench.run_bench(RespawnOptions(task="", latest_tick=1, out=tmp_path)) == 0
    assert "killed 1 times: " in capsys.readouterr().out
