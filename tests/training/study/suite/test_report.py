"""What the study tells: rates, differences and portions by hand-made choices, and its committed files."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from generated import ROOT
from rich.console import Console

from ttm.datasets.console import TitledTable
from ttm.sim.results import wilson_interval
from ttm.training.study.suite import StudySuiteCommand
from ttm.training.study.suite_report import (
    Choices,
    Figures,
    Report,
    Training,
    holm,
    paired_difference,
    read_figures,
)


def choices(variant: str, seed: int, task: str, gap: int, each: str) -> Choices:
    right = each.count("1")
    return Choices(variant, seed, task, gap, "live", 0, len(each), right, None, right, each)


def swapped(variant: str, gap: int, donor: int) -> Choices:
    return Choices(variant, 0, "count", gap, "swap", 0, 4, 4 - donor, donor, 0, None)


CHOICES = [
    choices("ours", 0, "count", 15, "1111"),
    choices("ours", 1, "count", 15, "1110"),
    choices("ours", 0, "shell", 15, "1111"),
    choices("ours", 1, "shell", 15, "0111"),
    choices("ours", 0, "count", 45, "1100"),
    choices("none", 0, "count", 15, "1000"),
    choices("none", 1, "count", 15, "1011"),
    swapped("ours", 15, 3),
]
TRAININGS = [
    Training(variant, seed, {"kind": "ttm"}, 100, 200, 60, minutes, 0.25)
    for variant, seed, minutes in (("none", 0, 1.0), ("ours", 0, 2.0), ("ours", 1, 4.0))
]
SETTINGS = {"steps": 60, "minutes": None, "batch_size": 16, "recall_weight": 2.0}
FIGURES = Figures(SETTINGS, TRAININGS, CHOICES)


def table(title: str, figures: Figures = FIGURES) -> TitledTable:
    (found,) = (each for each in Report(figures).tables() if title in each.heading)
    return found


def columns(table: TitledTable) -> list[str]:
    return [str(column.header) for column in table.columns]


def rows(table: TitledTable) -> list[list[str]]:
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_rates_are_over_tasks_and_seeds_and_by_task() -> None:
    low, high = wilson_interval(14, 16)
    found = table("Right choices, all tasks")
    (every,) = (row for row in rows(found) if row[0] == "ours")
    assert columns(found) == ["core", "seeds", "gap 15", "gap 45", "45/15"]
    assert every[1:3] == ["2", f"14/16 88 ({100 * low:.0f} to {100 * high:.0f})"]
    assert every[3].startswith("2/4 50 ")
    assert every[3].endswith("*")  # one seed and task of four
    assert every[4] == f"{0.5 / 0.875:.2f}"
    shell = rows(table("Right choices, shell"))
    assert [row[0] for row in shell] == ["ours", "none"]
    assert shell[1][2] == "—"


def test_differences_are_of_equal_states_and_seeds() -> None:
    (row,) = rows(table("Paired differences of right choices, in points, all tasks"))
    assert rows(table("Paired differences of right choices, in points, count")) == [row]
    assert row[:2] == ["none", "15"]
    assert row[2].startswith("+37.5 (")
    assert row[3:5] == ["4", "1"]  # only ours chose right in 3 + 1 states, only none in 1
    assert row[6] == "+75 +0"
    other_states = [replace(each, first_seed=9) for each in CHOICES if each.variant == "none"]
    assert paired_difference(CHOICES[:2], other_states) is None


def test_the_interval_of_a_difference_is_that_of_agresti_and_min() -> None:
    """With 4, 1 and 3 of 8 pairs: 0.5 is added to each of the four counts, which makes 10."""
    found = paired_difference(CHOICES[:2], CHOICES[5:7])
    assert found is not None
    assert (found.test.only_first, found.test.only_second, found.test.both) == (4, 1, 3)
    deviation = (4.5 + 1.5 - 3.0**2 / 10) ** 0.5 / 10
    assert found.value == pytest.approx(3 / 8)
    assert found.interval == pytest.approx(
        (0.3 - 1.96 * deviation, 0.3 + 1.96 * deviation), abs=1e-4
    )


def test_p_values_are_corrected_by_holm() -> None:
    assert holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert holm([]) == []


def test_the_donors_choices_are_told() -> None:
    found = table("what is done to the memory")
    assert columns(found) == ["core", "gap", "live", "swap", "donor's"]
    assert rows(found)[0][-1].startswith("75 (")


def test_every_row_has_its_name_in_a_terminal_of_80_characters() -> None:
    """With four columns of rates the names and gaps had no room left."""
    probes = [
        Choices("ours", 0, "count", 15, probe, 0, 100, 50, donor, 0, None)
        for probe, donor in (("erase", None), ("freeze", None), ("swap", 50))
    ]
    console = Console(width=80, record=True, file=StringIO())
    figures = replace(FIGURES, choices=[*CHOICES[:1], *probes])
    console.print(table("what is done to the memory", figures))
    assert re.search(r"^ *ours +15 +100 \(", console.export_text(), re.MULTILINE)


def test_costs_are_means_over_the_seeds() -> None:
    by_core = {row[0]: row for row in rows(table("Trainings"))}
    assert by_core["ours"][1:] == ["100", "200", "2", "60", "3.0", "3.00", "0.250"]


def test_costs_of_the_cpu_are_told_where_they_are_known() -> None:
    known = [
        replace(each, cpu_minutes=8.0 + each.seed, cost={"step_s": 0.25, "of_lstm": 1.25})
        for each in TRAININGS
    ]
    by_core = {row[0]: row for row in rows(table("Trainings", replace(FIGURES, trainings=known)))}
    assert by_core["ours"][-3:] == ["8.5", "0.250", "1.250"]


def test_figures_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(FIGURES.to_json())
    assert read_figures(path) == FIGURES
    assert Report(read_figures(path)).draw() == Report(FIGURES).draw()


def test_each_task_has_a_panel() -> None:
    """What is known of some tasks alone is not mixed with what is known of all."""
    svg = Report(FIGURES).draw()
    titles = re.findall(r"<text[^>]*>((?:count|shell|right choice|donor)[^<]*)</text>", svg)
    assert titles == ["count", "shell", "donor's choice, memory swapped"]


def test_table_and_plot_are_drawn_again_without_the_folder(
    finished: StudySuiteCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = finished.out / "figures.json", tmp_path / "suite.svg"
    assert replace(finished, data=(), plot=tmp_path / "first.svg").run() == 0
    first = capsys.readouterr().out
    again = replace(finished, figures=figures, plot=plot, out=tmp_path / "nothing")
    assert again.run() == 0
    assert capsys.readouterr().out == first
    assert plot.read_text() == (tmp_path / "first.svg").read_text()
    assert "right choice" in plot.read_text()
    assert not again.out.exists()
    assert str(finished.data[0]) not in figures.read_text()


RESULTS = ROOT / "training" / "study" / "results" / "suite"


@pytest.mark.parametrize(
    ("name", "heading", "row"),
    [
        ("cores.json", "all tasks", ("lstm", "1", "68/200 34 (28 to 41)")),
        ("cue_left_on.json", "take_back", ("none", "1", "99/100 99 (95 to 100)")),
    ],
)
def test_the_tables_have_the_rates_of_each_core(
    name: str, heading: str, row: tuple[str, ...]
) -> None:
    report = Report(read_figures(RESULTS / name))
    tables = {
        table.heading: list(zip(*(column.cells for column in table.columns), strict=True))
        for table in report.tables()
    }
    assert row in [each[:3] for each in tables[f"Right choices, {heading}"]]
