"""The tables of the page of the memory suite are those of the figures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.registry import core_to_dict
from ttm.sim.condition import LIVE
from ttm.sim.shipped import SHIPPED_CHECKPOINT
from ttm.training.study.suite_report import (
    Report,
    draw_choices,
    merged_figures,
    read_figures,
    right_choices,
)
from ttm.training.study.suite_runs import (
    OURS,
    OURS_OPTIONS,
    parse_variant,
    suite_cores,
    variant_parameters,
)

PAGE = Path(__file__).resolve().parents[4] / "training" / "study" / "suite" / "README.md"
RESULTS = PAGE.parent / "results"
FOLDERS = ("", "other_cores", "cue_left_on", "cue_left_on/alone", "cue_left_on/one_tick")
SEEDS = 3


def report(folder: Path = RESULTS) -> Report:
    return Report(merged_figures([read_figures(path) for path in sorted(folder.glob("*.json"))]))


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def marked(core: str) -> str:
    """Return a core's name, with the page's mark if it began with a trained sight memory."""
    return f"`{core}`" + (" †" if parse_variant(core, OURS_OPTIONS).sight.tokens else "")


def by_task(found: Report) -> Iterator[str]:
    cores = [name for name in ("ours", "lstm", "none", "ttm") if name in found.variants]
    yield row(["task", "gap", *map(marked, cores)])
    yield row(["---"] * (2 + len(cores)))
    for task, gap in product(found.tasks, found.gaps):
        yield row([f"`{task}`", str(gap), *(with_seeds(found, core, gap, task) for core in cores)])
    for gap in found.gaps:
        yield row(["mean of the tasks", str(gap), *(mean_of(found, core, gap) for core in cores)])


def mean_of(found: Report, core: str, gap: int) -> str:
    """Return the mean of the rates, or nothing for a core that was not trained on every task."""
    each = [found.select(core, gap, task=task) for task in found.tasks]
    return f"{100 * fmean(right_choices(of).rate for of in each):.0f} %" if all(each) else ""


def rate_of(found: Report, core: str, gap: int, task: str, probe: str = LIVE) -> str:
    choices = found.select(core, gap, probe, task)
    if not choices:
        return ""
    rate = right_choices(choices)
    low, high = rate.interval
    return f"{100 * rate.rate:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def with_seeds(found: Report, core: str, gap: int, task: str) -> str:
    """Return the rate, and the number of seeds if it is not that of the table."""
    seeds = len(found.select(core, gap, task=task))
    few = f", {seeds} seed{'s' * (seeds > 1)}" if 0 < seeds < SEEDS else ""
    return rate_of(found, core, gap, task) + few


def by_seed(found: Report) -> Iterator[str]:
    yield row(["seed", *(f"`{task}`" for task in found.tasks)])
    yield row(["---"] * (1 + len(found.tasks)))
    for seed in range(SEEDS):
        cells = [str(seed)]
        for task in found.tasks:
            of_seed = [e for e in found.select("ours", 15, task=task) if e.seed == seed]
            cells.append(f"{100 * right_choices(of_seed).rate:.0f} %" if of_seed else "")
        yield row(cells)


def by_core(found: Report) -> Iterator[str]:
    cells = list(product(found.tasks, found.gaps))
    yield row(["core", "seeds", *(f"`{task}`, gap {gap}" for task, gap in cells)])
    yield row(["---"] * (2 + len(cells)))
    for core in found.variants:
        seeds = {training.seed for training in found.figures.trainings if training.variant == core}
        rates = [rate_of(found, core, gap, task) for task, gap in cells]
        yield row([marked(core), str(len(seeds)), *rates])


def by_cue(hidden: Report, together: Report, alone: Report, one_tick: Report) -> Iterator[str]:
    kinds = ("all at once", "by itself", "one tick, with sight †")
    yield row(["task", "hidden", *(f"left on, {kind}" for kind in kinds)])
    yield row(["---"] * (2 + len(kinds)))
    for task in together.tasks:
        rates = [rate_of(found, "none", 15, task) for found in (hidden, together, alone)]
        rates.append(rate_of(one_tick, "none sight_tokens=6", 15, task, "zero"))
        yield row([f"`{task}`", *rates])


def tables() -> list[str]:
    whole, two_tasks, *left_on = (report(RESULTS / name) for name in FOLDERS)
    parts = by_task(whole), by_seed(whole), by_core(two_tasks), by_cue(whole, *left_on)
    return ["".join(rows) for rows in parts]


def test_the_tables_are_those_of_the_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in tables():
        assert table in page, f"the page should hold\n{table}"


@pytest.mark.parametrize("name", FOLDERS)
def test_the_study_would_compare_the_same_cores_today(name: str) -> None:
    policy = load_checkpoint(SHIPPED_CHECKPOINT)[0]
    sizes = policy.config.width, policy.num_encoded
    ours = parse_variant(OURS, OURS_OPTIONS)
    for training in report(RESULTS / name).figures.trainings:
        variant = parse_variant(training.variant, OURS_OPTIONS)
        core = suite_cores(ours, [variant], *sizes)[variant.label]
        assert core_to_dict(core) == training.core, training.variant
        assert variant_parameters(variant, core, *sizes) == training.parameters


def test_the_plot_is_that_of_the_figures() -> None:
    """Compared in words, since another release of Matplotlib places the same points differently."""
    committed = described(RESULTS.joinpath("choices.svg").read_text(encoding="utf-8"))
    assert committed == described(draw_choices(report()))


def described(svg: str) -> list[str]:
    (words,) = re.findall(r"<desc>(.*?)</desc>", svg, flags=re.DOTALL)
    return str(words).splitlines()
