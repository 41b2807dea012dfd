"""The plot of the studies of MiniGrid levels, and the table for a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from success_table import main

from ttm.policy import UserError
from ttm.training import cli

pytest.importorskip("minigrid")

from ttm.sim.results import Rate
from ttm.training.console import write_given
from ttm.training.study.minigrid_study import ActingResult, CoreResult, draw_panels, panels_of

PANELS = {
    "best": {"tlb": Rate(7, 8), "none": Rate(2, 8)},
    "drawn": {"tlb": Rate(8, 8), "none": Rate(0, 8)},
}


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        write_given(tmp_path / "new" / name, draw_panels(PANELS), "--plot")
    first, second = sorted((tmp_path / "new").iterdir())
    assert first.read_bytes() == second.read_bytes()
    assert "best, tlb: 88 % of 8" in first.read_text()


def test_results_become_panels() -> None:
    def result(core: str, success: list[bool]) -> CoreResult:
        acting = ActingResult(success, [3] * len(success), 1.0)
        return CoreResult(core, {}, 1, 1, 0.1, 1.0, {"best": acting})

    results = [result("tlb", [True, True, False]), result("none", [False, True, False])]
    assert panels_of("GoToSeq", results) == {
        "GoToSeq, best action": {"tlb": Rate(2, 3), "none": Rate(1, 3)}
    }


def test_panels_become_a_table_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {"title": "best", "episodes": 8, "successes": {"tlb": 7, "none": 2}}
    (tmp_path / "a.json").write_text(json.dumps([best]))
    other = {"title": "other", "episodes": 4, "successes": {"lstm": 4}}
    (tmp_path / "b.json").write_text(json.dumps([other]))
    main([*(str(tmp_path / name) for name in ("a.json", "b.json", "plot.svg"))])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| core | best | other |"
    assert rows[2] == "| `tlb` | 87.5 % (52.9 to 97.8) |  |"
    assert rows[4] == "| `lstm` |  | 100.0 % (51.0 to 100.0) |"
    assert (tmp_path / "plot.svg").is_file()


def test_a_plot_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*give another file with --plot"):
        write_given(tmp_path / "file" / "plot.svg", draw_panels(PANELS), "--plot")
    assert cli.main(["study", "babyai", "--plot", "plot.png"]) == cli.EXIT_USER_ERROR
    assert "--plot is plot.png; give a file that ends with .svg" in capsys.readouterr().err
