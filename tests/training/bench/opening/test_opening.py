"""`ttm bench opening` on a few episodes, whose processes are functions of this one."""

from __future__ import annotations

import contextlib
import io
import json
import math
import runpy
import sys
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from ttm.datasets import index as opening
from ttm.datasets.dataset import open_dataset, same_episodes
from ttm.policy.errors import UserError
from ttm.training.bench import opening as bench
from ttm.training.bench import opening as material
from ttm.training.bench import opening as opened
from ttm.training.bench.opening import BenchOpeningCommand, write_files

GOOD = opened.Opened(20_000, clock_s=4.0, processor_s=4.0, peak_mb=400.0, growth_mb=1.0)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes run here, and data sets of any size have an index."""

    def run(command: list[str], env: dict[str, str], **_: Any) -> CompletedProcess[str]:
        module, *words = command[2:]
        printed = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setenv("TTM_INDEX", env["TTM_INDEX"])
            patch.setattr(sys, "argv", [module, *words])
            patch.delitem(sys.modules, module, raising=False)
            runpy.run_module(module, run_name="__main__")
        return CompletedProcess(command, 0, printed.getvalue())

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setattr(opening, "INDEX_FROM", 1)


def test_every_figure_is_told_and_the_second_opening_has_the_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PEAK_MB", math.inf)  # this process has done other tests before
    figures = tmp_path / "figures.json"
    command = BenchOpeningCommand(5, merged=2, batches=20, folder=tmp_path, json=figures)
    assert command.run() == 0
    printed = capsys.readouterr().out
    told = json.loads(figures.read_text())
    for name, files in (("single", 5), ("merged", 2)):
        assert f"5 episodes in {files} files" in printed
        first, second = told[name]["first"], told[name]["second"]
        assert first["episodes"] == second["episodes"] == 5
        assert first["growth_mb"] is None
        assert abs(second["growth_mb"]) < 20
    assert list(tmp_path.iterdir()) == [figures]


def test_episodes_differ_and_are_the_same_in_fewer_files(tmp_path: Path) -> None:
    write_files(tmp_path / "single", 5, 5)
    write_files(tmp_path / "merged", 5, 2)
    single, merged = open_dataset(tmp_path / "single"), open_dataset(tmp_path / "merged")
    assert [len(list((tmp_path / name).iterdir())) for name in ("single", "merged")] == [5, 2]
    assert not same_episodes(single)
    for one, other in zip(single, merged, strict=True):
        assert np.array_equal(one.actions, other.actions)
        assert np.array_equal(one.frames("head"), other.frames("head"))


@pytest.mark.parametrize(
    ("first", "second", "missed"),
    [
        ({}, {}, []),
        ({"clock_s": 61.0, "peak_mb": 2001.0}, {}, ["first opening, s", "memory, first, MB"]),
        ({}, {"clock_s": 5.1, "growth_mb": 30.0}, ["second opening, s", "growth in training, MB"]),
    ],
)
def test_each_bar_can_be_missed(
    first: dict[str, Any], second: dict[str, Any], missed: list[str]
) -> None:
    lines = bench.lines(replace(GOOD, **first), replace(GOOD, **second))
    assert [line.what for line in lines if line.holds is False] == missed


def test_memory_that_grows_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = iter(range(1000))
    monkeypatch.setattr(opened, "resident_mb", lambda: float(next(taken)))
    write_files(tmp_path / "data", 2, 1)
    assert opened.opened(tmp_path / "data", 20).growth_mb == 16.0


def test_values_that_cannot_be_are_refused(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"episodes": 0}, {"merged": 0}, {"batches": 5}]
    changes += [{"merged": 6, "episodes": 5}, {"folder": tmp_path / "none"}]
    for change in changes:
        with pytest.raises(UserError, match=f"--{next(iter(change))}"):
            BenchOpeningCommand(**change).run()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(material, "write_demo_file", full)
    with pytest.raises(UserError, match=r"single \(No space left on device\); give a --folder"):
        BenchOpeningCommand(5, merged=2, batches=20, folder=tmp_path).run()
    assert list(tmp_path.iterdir()) == []
