"""`ttm bench sim`: parts of a tick, and the same frames in both ways. No test depends on time."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.training.bench import sim
from ttm.training.bench.sim import (
    ALWAYS,
    HEAD,
    PARTS,
    PHYSICS,
    SHIPPED,
    BenchSimCommand,
    Stopwatch,
    TimedTick,
    one_core,
    rows_of,
)

QUICK = BenchSimCommand(tasks=("open_drawer", "count"), episodes=1, gap=3)
FRAME = np.zeros((2, 2, 3), np.uint8)


def test_every_task_and_situation_prints_a_line_and_gives_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "sim.json"
    assert replace(QUICK, json=path).run() == 0
    printed = capsys.readouterr().out
    for text in ("count, gap", "as shipped", ">= 160", "IK", "wrist", "ticks/s"):
        assert text in printed
    assert "…" not in printed  # no figure is cut off
    figures = json.loads(path.read_text())
    assert [(row["task"], row["situation"], row["frames"]) for row in figures["rows"]] == [
        (task, situation, frames)
        for task, situation in (("open_drawer", "acting"), ("count", "gap"), ("count", "acting"))
        for frames in (SHIPPED, ALWAYS)
    ]
    for row in figures["rows"]:
        assert row["different_frames"] == 0
        assert list(row["parts_ms"]) == list(PARTS)
        acting = row["situation"] == "acting"
        assert row["ticks"] > 3 if acting else row["ticks"] == 3
        assert row["tick_ms"] == pytest.approx(sum(row["parts_ms"].values()))
        assert row["ticks_per_s"] == pytest.approx(1e3 / row["tick_ms"])
        for part, ms in row["parts_ms"].items():
            assert (ms > 0) == (acting or part != "inverse kinematics"), part


def test_inner_parts_do_not_count_for_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def spend(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(sim.time, "perf_counter", lambda: clock)
    watch = Stopwatch()
    inner = watch.timed("inner", spend)

    def outer() -> str:
        spend(1.0)
        inner(2.0)
        inner(4.0)
        return "done"

    assert watch.timed("outer", outer)() == "done"
    assert watch.take() == {"inner": 6.0, "outer": 1.0}
    assert watch.take() == {}


def test_rows_hold_medians_of_episodes_and_ratios_of_the_same_episodes() -> None:
    def ticks(*seconds: float, frame: np.ndarray = FRAME) -> list[TimedTick]:
        return [TimedTick("acting", {PHYSICS: s, HEAD: s}, (frame, FRAME)) for s in seconds]

    shipped, always = rows_of(
        "pick",
        "acting",
        {
            SHIPPED: [ticks(0.1, 0.3), ticks(0.1), ticks(0.3)],
            ALWAYS: [ticks(0.4, 0.4), ticks(0.1), ticks(0.9, frame=FRAME + 1)],
        },
    )
    assert shipped["ticks"] == 4
    assert shipped["tick_ms"] == pytest.approx(400)
    assert shipped["parts_ms"][HEAD] == pytest.approx(200)
    assert shipped["ticks_per_s"] == pytest.approx(2.5)
    assert shipped["speed"] == pytest.approx(2)
    assert shipped["different_frames"] == 1
    assert always["speed"] == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot do that")
def test_one_core_is_used_and_then_all_again() -> None:
    before = os.sched_getaffinity(0)
    with one_core() as kept:
        assert kept
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": 0}, "--gap is 0; give 1 or more"),
        ({"episodes": 0}, "--episodes is 0; give 1 or more"),
        ({"tasks": ()}, "--tasks is empty; give one value or more"),
        ({"tasks": ("dance",)}, "task is 'dance'; give one of pick, .*memory"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(QUICK, **options).run()
