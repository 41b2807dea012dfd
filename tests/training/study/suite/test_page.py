"""The tables of the page of the memory suite are those of the figures beside it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

from ttm.training.study.suite.figures import merged_figures, read_figures
from ttm.training.study.suite.plot import draw_choices
from ttm.training.study.suite.report import Report
from ttm.training.study.suite.statistics import right_choices

PAGE = Path(__file__).resolve().parents[4] / "training" / "study" / "suite" / "README.md"
RESULTS = PAGE.parent / "results"
SEEDS = 3


def report() -> Report:
    return Report(merged_figures([read_figures(path) for path in sorted(RESULTS.glob("*.json"))]))


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def by_task(found: Report) -> Iterator[str]:
    cores = [name for name in ("ours", "lstm", "none", "ttm") if name in found.variants]
    yield row(["task", "gap", *(f"`{core}`" for core in cores)])
    yield row(["---"] * (2 + len(cores)))
    for task, gap in product(found.tasks, found.gaps):
        yield row([f"`{task}`", str(gap), *(rate_of(found, core, gap, task) for core in cores)])
    for gap in found.gaps:
        yield row(["mean of the tasks", str(gap), *(mean_of(found, core, gap) for core in cores)])


def mean_of(found: Report, core: str, gap: int) -> str:
    """Return the mean of the rates, or nothing for a core that was not trained on every task."""
    each = [found.select(core, gap, task=task) for task in found.tasks]
    return f"{100 * fmean(right_choices(of).rate for of in each):.0f} %" if all(each) else ""


def rate_of(found: Report, core: str, gap: int, task: str) -> str:
    choices = found.select(core, gap, task=task)
    if not choices:
        return ""
    rate, star = right_choices(choices), "" if len(choices) == SEEDS else "*"
    low, high = rate.interval
    return f"{100 * rate.rate:.0f} % ({100 * low:.0f} to {100 * high:.0f}){star}"


def by_seed(found: Report) -> Iterator[str]:
    yield row(["seed", *(f"`{task}`" for task in found.tasks)])
    yield row(["---"] * (1 + len(found.tasks)))
    for seed in range(SEEDS):
        cells = [str(seed)]
        for task in found.tasks:
            of_seed = [e for e in found.select("ours", 15, task=task) if e.seed == seed]
            cells.append(f"{100 * right_choices(of_seed).rate:.0f} %" if of_seed else "")
        yield row(cells)


def test_the_tables_are_those_of_the_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in ("".join(by_task(report())), "".join(by_seed(report()))):
        assert table in page, f"the page should hold\n{table}"


def test_the_plot_is_that_of_the_figures() -> None:
    assert (RESULTS / "choices.svg").read_text() == draw_choices(report())
