"""The file from which a respawned policy goes on: when it is written, and what becomes of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from stepped_loop import SteppedLoop

from ttm.policy import PolicyRunner
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import RobotContract, load_contract
from ttm_policy.control_loop import LoopState, MemoryReport
from ttm_policy.diagnostics import TickRecord
from ttm_policy.goals import EpisodeControl
from ttm_policy.guards import REARM
from ttm_policy.inputs import StampedObservation
from ttm_policy.limits import SafetyLimits
from ttm_policy.memory import Recovery
from ttm_policy.parameters import LIMITS, PolicyParameters
from ttm_policy.session import MemoryServices

CAN = "pick up the red can"


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.info = self.warning = self.lines.append


@pytest.fixture
def log() -> Log:
    return Log()


def _loop(checkpoint: Path, instruction: str = CAN) -> SteppedLoop:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    if instruction:
        runner.reset(instruction)
    limits = SafetyLimits(load_contract(), SPEC, dict.fromkeys(LIMITS, 100.0))
    return SteppedLoop(runner, limits, PolicyParameters(max_age_s=0.5, stop_after_s=2.0))


def _parameters(path: Path, **others: Any) -> PolicyParameters:
    return PolicyParameters(recovery_path=str(path), **others)


def _tick(loop: SteppedLoop, recovery: Recovery, observation: Any, stamp_s: float) -> np.ndarray:
    """One tick as the node runs it. Return the policy's own action (A,)."""
    seen = StampedObservation(observation, round(stamp_s * 1e9), round(stamp_s * 1e9))
    action = loop.infer(seen).action
    recovery.executed(loop.finish(action, stamp_s, seen))
    return action


def test_a_respawned_process_takes_the_next_action_bit_by_bit(
    checkpoint: Path, observations: list[Any], tmp_path: Path, log: Log
) -> None:
    parameters = _parameters(tmp_path / "memory.npz")
    first = _loop(checkpoint)
    recovery = Recovery(first, parameters, log)
    for index in range(3):
        _tick(first, recovery, observations[index], 1.0 + index)
    respawned = _loop(checkpoint, instruction="")
    Recovery(respawned, parameters, log).restore(load_contract())
    assert respawned.state is LoopState.WAITING
    assert (respawned.runner.tick, respawned.runner.instruction) == (3, CAN)
    assert respawned.last_stamp_ns == first.last_stamp_ns
    expected = _tick(first, recovery, observations[3], 4.0)
    assert np.array_equal(_tick(respawned, recovery, observations[3], 4.0), expected)
    assert log.lines == [
        f"it crashed and goes on by itself at tick 3 of: {CAN} (resume_after_crash is in_simulation)"
    ]


REAL = replace(load_contract(), robot="fetch", path="my_robot.yaml")


@pytest.mark.parametrize(
    ("chosen", "contract", "lockstep", "resumes"),
    [
        ("in_simulation", load_contract(), False, True),
        ("in_simulation", REAL, False, False),
        ("in_simulation", REAL, True, True),  # a robot does not wait for commands
        ("always", REAL, False, True),
        ("never", load_contract(), True, False),
    ],
)
def test_a_robot_goes_on_by_itself_only_in_simulation_unless_it_is_told_otherwise(
    checkpoint: Path, tmp_path: Path, log: Log,
    chosen: Any, contract: RobotContract, lockstep: bool, resumes: bool,
) -> None:  # fmt: skip
    choice = {"resume_after_crash": chosen, "lockstep": lockstep}
    parameters = _parameters(tmp_path / "memory.npz", **choice)
    assert not _hold(checkpoint, parameters, contract, log), "nothing has crashed yet"
    Recovery(_loop(checkpoint), parameters, log).save()
    hold = _hold(checkpoint, parameters, contract, log)
    assert bool(hold) is not resumes
    assert resumes or REARM in hold
    assert f"resume_after_crash is {chosen}" in log.lines[0]
    assert ("goes on by itself" if resumes else "stands still") in log.lines[0]
    assert CAN in log.lines[0]


def _hold(checkpoint: Path, parameters: PolicyParameters, contract: Any, log: Log) -> str:
    return Recovery(_loop(checkpoint, instruction=""), parameters, log).restore(contract)


@pytest.mark.parametrize("age_s", [60.0, -60.0])
def test_a_real_robot_stands_still_after_a_crash_with_an_empty_memory_too(
    checkpoint: Path, tmp_path: Path, log: Log, age_s: float
) -> None:
    """Its parameter `instruction` would move it. A file of the future is one of before a power cut."""
    path = tmp_path / "memory.npz"
    Recovery(_loop(checkpoint), _parameters(path), log).save()
    os.utime(path, (time.time() - age_s,) * 2)
    respawned = _loop(checkpoint)
    assert REARM in Recovery(respawned, _parameters(path), log).restore(REAL)
    assert respawned.runner.tick == 0
    assert "the memory is empty" in log.lines[0]
    path.write_bytes(b"damaged")
    assert REARM in Recovery(respawned, _parameters(path), log).restore(REAL)


def test_diagnostics_warn_of_a_crash_until_the_episode_ends(
    checkpoint: Path, observations: list[Any], tmp_path: Path, log: Log
) -> None:
    parameters = _parameters(tmp_path / "memory.npz")
    Recovery(_loop(checkpoint), parameters, log).save()
    loop = _loop(checkpoint, instruction="")
    recovery = Recovery(loop, parameters, log)
    recovery.restore(load_contract())
    inputs: Any = SimpleNamespace(ages_s=lambda _: {})
    memory: Any = SimpleNamespace(report=MemoryReport())
    commands = MagicMock(person="", problem="")
    record = TickRecord(MagicMock(), loop, inputs, memory, commands)
    _tick(loop, recovery, observations[0], 1.0)
    status = record.status(active=True)
    assert (status.level, status.message) == (
        DiagnosticStatus.WARN, "running, but it crashed and went on by itself at tick 0",
    )  # fmt: skip
    loop.reset(CAN)
    _tick(loop, recovery, observations[0], 2.0)
    assert record.status(active=True).level == DiagnosticStatus.OK


@pytest.mark.parametrize("ended", [False, True])
def test_a_robot_that_moved_for_a_goal_stands_still_after_a_respawn(
    checkpoint: Path, observations: list[Any], tmp_path: Path, log: Log, ended: bool
) -> None:
    """Nobody could cancel the goal any more. Another goal, or a reset, lets the robot move."""
    parameters = _parameters(tmp_path / "memory.npz")
    first = _loop(checkpoint)
    first.begin_episode(goal=True)
    _tick(first, Recovery(first, parameters, log), observations[0], 1.0)
    if ended:
        first.rest("goal 1 succeeded")
    respawned = _loop(checkpoint, instruction="")
    Recovery(respawned, parameters, log).restore(load_contract())
    assert (respawned.state, respawned.runner.tick) == (LoopState.RESTING, 1)
    assert "goal" in respawned.problem
    respawned.begin_episode()
    assert respawned.state is LoopState.WAITING


def test_the_file_tells_a_goal_before_its_first_tick(
    checkpoint: Path, tmp_path: Path, log: Log
) -> None:
    """A crash may come when the memory is reset, and the thread of the node has not heard of it."""
    parameters = _parameters(tmp_path / "memory.npz")
    loop = _loop(checkpoint)
    worker: Any = SimpleNamespace(submit=lambda job, then: job())
    instructions: Any = SimpleNamespace(reset=lambda runner, text: runner.reset(text))
    unused = ("node", "memory", "commands", "record")
    episode = EpisodeControl(
        **dict.fromkeys(unused, MagicMock()),
        instructions=instructions,
        loop=loop,
        worker=worker,
        recovery=Recovery(loop, parameters, log),
        lockstep=False,
    )
    services = MemoryServices(episode, MagicMock(), MagicMock(), "")

    def respawned() -> LoopState:
        found = _loop(checkpoint, instruction="")
        again = Recovery(found, parameters, log)
        again.restore(load_contract())
        again.save()  # as services do that save the memory
        return found.state

    episode.begin(CAN, goal=True)
    assert [respawned(), respawned()] == [LoopState.RESTING] * 2
    services._change(services._reset)
    assert respawned() is LoopState.WAITING
    episode.begin(CAN, goal=True)
    episode.begin(CAN)
    assert respawned() is LoopState.WAITING


def test_the_period_counts_in_the_time_of_the_stamps(
    checkpoint: Path, observations: list[Any], tmp_path: Path, log: Log
) -> None:
    path = tmp_path / "memory.npz"
    loop = _loop(checkpoint)
    recovery = Recovery(loop, _parameters(path, recovery_period_s=1.0), log)
    saved = []
    for stamp_s in (10.0, 10.5, 11.0, 11.5, 3.0):  # the clock is set back in the end
        path.unlink(missing_ok=True)
        _tick(loop, recovery, observations[0], stamp_s)
        saved.append(path.exists())
    assert saved == [True, False, True, False, True]


def test_an_old_file_is_not_gone_on_with(checkpoint: Path, tmp_path: Path, log: Log) -> None:
    path = tmp_path / "memory.npz"
    parameters = _parameters(path, recovery_max_age_s=30.0)
    Recovery(_loop(checkpoint), parameters, log).save()
    an_age_ago = time.time() - 60
    os.utime(path, (an_age_ago, an_age_ago))
    respawned = _loop(checkpoint, instruction="")
    Recovery(respawned, parameters, log).restore(load_contract())
    assert respawned.state is LoopState.NO_INSTRUCTION
    assert "recovery_max_age_s is 30" in log.lines[0]


def test_a_damaged_file_is_told_and_the_memory_is_empty(
    checkpoint: Path, tmp_path: Path, log: Log
) -> None:
    path = tmp_path / "memory.npz"
    Recovery(_loop(checkpoint), _parameters(path), log).save()
    path.write_bytes(path.read_bytes()[:-50])
    respawned = _loop(checkpoint, instruction="")
    Recovery(respawned, _parameters(path), log).restore(load_contract())
    assert respawned.runner.tick == 0
    assert f"cannot go on from {path}" in log.lines[0]


def test_a_full_disk_is_told_once_and_stops_nothing(
    checkpoint: Path, observations: list[Any], tmp_path: Path, log: Log
) -> None:
    (tmp_path / "file").write_text("")
    loop = _loop(checkpoint)
    recovery = Recovery(loop, _parameters(tmp_path / "file" / "memory.npz"), log)
    recovery.mark(active=True)
    for stamp_s in (1.0, 2.0):
        _tick(loop, recovery, observations[0], stamp_s)
    assert loop.runner.tick == 2
    recovery.end()
    assert len(log.lines) == 1
    assert "set recovery_path" in log.lines[0].lower()


def test_a_file_that_cannot_be_removed_is_told_and_stops_nothing(
    checkpoint: Path, tmp_path: Path, log: Log
) -> None:
    path = tmp_path / "memory.npz"
    path.mkdir()  # unlinking a folder fails, also for root
    Recovery(_loop(checkpoint), _parameters(path), log).end()
    assert [f"cannot remove {path}" in line for line in log.lines] == [True]


def test_an_orderly_end_leaves_nothing_and_a_cleanup_only_the_mark(
    checkpoint: Path, tmp_path: Path, log: Log
) -> None:
    parameters = _parameters(tmp_path / "folder" / "memory.npz")
    recovery = Recovery(_loop(checkpoint), parameters, log)
    recovery.save()
    recovery.mark(active=False)
    assert Recovery(_loop(checkpoint), parameters, log).was_deactivated
    recovery.drop()
    recovery.save()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["memory.npz.inactive"]
    recovery.end()
    assert not list((tmp_path / "folder").iterdir())


def test_without_the_parameter_nothing_is_kept(
    checkpoint: Path, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recovery = Recovery(_loop(checkpoint), PolicyParameters(), log)
    recovery.restore(load_contract())
    recovery.save()
    recovery.mark(active=False)
    recovery.mark(active=True)
    assert not recovery.was_deactivated
    recovery.end()
    assert not list(tmp_path.iterdir())
