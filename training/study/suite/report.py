"""The tables of the study, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from rich.table import Table

from ttm.sim.evaluation.condition import LIVE
from ttm.sim.evaluation.result import Rate
from ttm.training.common.tables import compact_table
from ttm.training.study.suite.figures import Choices, Figures
from ttm.training.study.suite.statistics import (
    Difference,
    donor_choices,
    paired_difference,
    right_choices,
)
from ttm.training.study.suite.variants import OURS, VARIANTS

MISSING = "-"
NOTES = """\
Each cell: right choices of all episodes, in %, with Wilson's 95 % interval over the episodes. It does
not say how much another training would differ; for that see the differences by seed. To choose nothing
counts as wrong. A star: other variants have more seeds or tasks there.
45/15: the rate at a gap of 45 ticks as a portion of that at 15. only ours, only it: initial states in
which one of the two chose right. p: McNemar's exact test; difference: with the 95 % interval of Agresti
and Min (2005). Pairs are the same state with trainings of the same seed.
donor's: with the memory of an episode of another cue, choices of what that cue asked for."""


@dataclass(frozen=True)
class Grid:
    """A table: the first column holds text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def for_terminal(self) -> Table:
        table = compact_table(self.title, self.columns)
        for column in table.columns:  # of which the widest is wrapped first in a narrow terminal
            column.no_wrap = False
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        rules = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, rules, *self.rows]
        return "\n".join(
            [f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)]
        )


class Report:
    """Makes the tables from figures."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        known = {training.variant for training in figures.trainings}
        self.variants = [name for name in VARIANTS if name in known]
        self.variants += sorted(known - set(self.variants))
        self.gaps = sorted({each.gap for each in figures.choices})
        self.tasks = sorted({each.task for each in figures.choices})
        self.probes = list(dict.fromkeys(each.probe for each in figures.choices))
        self.probes.sort(key=lambda probe: probe != LIVE)

    def heading(self) -> str:
        """Return the text above the tables."""
        trainings, settings = self.figures.trainings, self.figures.settings
        sizes = [training.parameters for training in trainings]
        steps = [training.steps for training in trainings]
        window = settings.get("window")
        windows = "episodes" if window == "episode" else f"windows of length {window}"
        return (
            f"Memory suite ({', '.join(self.tasks) or 'no evaluation yet'}): {len(trainings)} trainings of "
            f"{_range(steps)} steps of {settings.get('batch_size')} {windows}, recall loss "
            f"{settings.get('recall_weight')}; cores of {_range(sizes)} parameters"
        )

    def grids(self) -> list[Grid]:
        """Return all tables that the figures allow."""
        grids = [self._choices("all tasks")] if self.gaps else []
        grids += [self._choices(task, task) for task in self.tasks if len(self.tasks) > 1]
        optional = [self._differences(), self._probes()]
        grids += [grid for grid in optional if grid.rows]
        return [*grids, self._costs()]

    def select(
        self, variant: str, gap: int, probe: str = LIVE, task: str | None = None
    ) -> list[Choices]:
        """Return the evaluations of a variant at a gap, of one task or of all."""
        return [
            each
            for each in self.figures.choices
            if (each.variant, each.gap, each.probe) == (variant, gap, probe)
            and task in (None, each.task)
        ]

    def _choices(self, title: str, task: str | None = None) -> Grid:
        steps = [f"{later}/{earlier}" for earlier, later in pairwise(self.gaps)]
        columns = ["core", "seeds", *(f"gap {gap}" for gap in self.gaps), *steps]
        rows = []
        for variant in self.variants:
            found = {gap: self.select(variant, gap, LIVE, task) for gap in self.gaps}
            seeds = {each.seed for of_gap in found.values() for each in of_gap}
            rates = [right_choices(found[gap]) for gap in self.gaps]
            kept = [_portion(earlier, later) for earlier, later in pairwise(rates)]
            cells = [
                _in_words(rate) + ("" if self._is_whole(found[gap], task) else "*")
                for gap, rate in zip(self.gaps, rates, strict=True)
            ]
            rows.append([variant, str(len(seeds)), *cells, *kept])
        return Grid(f"Right choices, {title}", columns, rows)

    def _is_whole(self, found: Sequence[Choices], task: str | None) -> bool:
        """Return whether `found` has all tasks and seeds of which anything is known, or nothing."""
        seeds = {each.seed for each in self.figures.choices}
        tasks = self.tasks if task is None else [task]
        return len(found) in (0, len(seeds) * len(tasks))

    def differences(self) -> Iterator[tuple[str, int, Difference]]:
        """Yield how much better ours is than each other variant at each gap."""
        for variant in self.variants:
            for gap in self.gaps:
                found = paired_difference(self.select(OURS, gap), self.select(variant, gap))
                if variant != OURS and found is not None:
                    yield variant, gap, found

    def _differences(self) -> Grid:
        columns = ["ours against", "gap", "difference", "only ours", "only it", "p", "by seed"]
        rows = [
            [
                variant,
                str(gap),
                "{:+.1f} ({:+.1f} to {:+.1f})".format(
                    *(100 * value for value in (found.value, *found.interval))
                ),
                str(found.test.only_first),
                str(found.test.only_second),
                "<0.001" if found.test.p_value < 0.001 else f"{found.test.p_value:.3f}",
                " ".join(f"{100 * value:+.0f}" for _, value in sorted(found.by_seed.items())),
            ]
            for variant, gap, found in self.differences()
        ]
        return Grid("Paired differences of right choices, in points", columns, rows)

    def _probes(self) -> Grid:
        others = [probe for probe in self.probes if probe != LIVE]
        swapped = any(each.donor is not None for each in self.figures.choices)
        columns = ["core", "gap", LIVE, *others, *(["donor's"] if swapped else [])]
        rows = []
        for variant in self.variants if others else []:
            for gap in self.gaps:
                found = [self.select(variant, gap, probe) for probe in (LIVE, *others)]
                cells = [_in_brief(right_choices(each)) for each in found]
                if swapped:
                    cells.append(_in_brief(donor_choices(self.select(variant, gap, "swap"))))
                if any(found[1:]):
                    rows.append([variant, str(gap), *cells])
        return Grid("Right choices by what is done to the memory, all tasks", columns, rows)

    def _costs(self) -> Grid:
        columns = [
            "core",
            "parameters",
            "of the policy",
            "trainings",
            "steps",
            "minutes",
            "s a step",
        ]
        columns.append("error")
        rows = []
        for variant in self.variants:
            of = [training for training in self.figures.trainings if training.variant == variant]
            minutes = fmean(training.minutes for training in of)
            steps = [training.steps for training in of]
            errors = [each.validation_error for each in of if each.validation_error is not None]
            rows.append(
                [
                    variant,
                    _range([training.parameters for training in of]),
                    _range([training.all_parameters for training in of]),
                    str(len(of)),
                    _range(steps),
                    f"{minutes:.1f}",
                    f"{60 * minutes / fmean(steps):.2f}",
                    f"{fmean(errors):.3f}" if errors else MISSING,
                ]
            )
        return Grid(
            "Trainings: means over all of them; error: of the actions in held-out demonstrations",
            columns,
            rows,
        )


def _in_words(rate: Rate) -> str:
    if not rate.episodes:
        return MISSING
    return f"{rate.count}/{rate.episodes} {_in_brief(rate)}"


def _in_brief(rate: Rate) -> str:
    """Return the rate and its interval without the counts."""
    if not rate.episodes:
        return MISSING
    low, high = rate.interval
    return f"{100 * rate.rate:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value, or the one that all have."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _portion(earlier: Rate, later: Rate) -> str:
    if not earlier.count or not later.episodes:
        return MISSING
    return f"{later.rate / earlier.rate:.2f}"
