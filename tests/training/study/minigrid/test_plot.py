"""The plot of the studies of MiniGrid levels, and the one in `training/study/README.md`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ttm.policy.errors import UserError
from ttm.sim.results import wilson_interval
from ttm.training import cli
from ttm.training.study.minigrid import ActingResult, CoreResult
from ttm.training.study.minigrid_study import Panel, panels_of, read_panels, write_plot

STUDY = Path(__file__).resolve().parents[4] / "training" / "study"
PANELS = [Panel("best", 8, {"tlb": 7, "none": 2}), Panel("drawn", 8, {"tlb": 8, "none": 0})]


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        write_plot(tmp_path / "new" / name, PANELS)
    first, second = sorted((tmp_path / "new").iterdir())
    assert first.read_bytes() == second.read_bytes()
    write_plot(tmp_path / "plot.png", PANELS)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_results_become_panels() -> None:
    def result(core: str, success: list[bool]) -> CoreResult:
        acting = ActingResult(success, [3] * len(success), 1.0)
        return CoreResult(core, {}, 1, 1, 0.1, 1.0, {"best": acting})

    results = [result("tlb", [True, True, False]), result("none", [False, True, False])]
    assert panels_of("GoToSeq", ["best"], results) == [
        Panel("GoToSeq, best action", 3, {"tlb": 2, "none": 1})
    ]


def test_the_page_shows_the_figures_of_its_plot() -> None:
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    table = page.partition("](babyai_gotoseq.svg)")[2].strip().partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    shown = {re.findall(r"`(.*?)`", row[0])[0]: row[2:] for row in rows[2:]}
    for number, panel in enumerate(read_panels(STUDY / "babyai_gotoseq.json")):
        for core, count in panel.successes.items():
            low, high = (100 * bound for bound in wilson_interval(count, panel.episodes))
            rate = 100 * count / panel.episodes
            assert shown[core][number] == f"{rate:.1f} % ({low:.1f} to {high:.1f})"


def test_a_plot_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*give another file with --plot"):
        write_plot(tmp_path / "file" / "plot.svg", PANELS)
    assert cli.main(["study", "babyai", "--plot", "plot.jpg"]) == cli.EXIT_USER_ERROR
    assert "--plot is plot.jpg; give a file that ends with .svg or .png" in capsys.readouterr().err
