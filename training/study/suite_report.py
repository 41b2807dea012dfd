"""The figures of `ttm study suite`: one JSON file, tables and a plot that are made from it."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from rich.table import Table

from ttm.policy.cores.registry import TTM
from ttm.policy.errors import UserError
from ttm.sim.condition import LIVE
from ttm.sim.pages import Point, draw_rates
from ttm.sim.results import CONFIDENCE, PairedTest, Rate, mcnemar_exact
from ttm.training.console import compact_table
from ttm.training.study.common import markdown, p_text, percent

OURS = "ours"  # the name of our Token Turing Machine; `TTM` is the published one
VARIANTS = (OURS, TTM, "none", "lstm", "tlb", "hourglass", "transformer", "frame-stacking")
"""What is compared by default, in the order of the tables."""
SWAP = "swap"
LATER_SETTINGS = {"window": "episode"}
"""Settings that did not exist at first, and what they were then."""


# Figures. The fields are the format of the JSON file.


@dataclass(frozen=True)
class Training:
    """One finished training."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    parameters: int  # of the core
    all_parameters: int  # of the whole policy
    steps: int
    minutes: float
    validation_error: float | None = None
    """Of the actions in held-out demonstrations, in standard deviations; None if there are none."""


@dataclass(frozen=True)
class Choices:
    """What one policy chose in one task under one condition."""

    variant: str
    seed: int
    task: str
    gap: int
    probe: str
    first_seed: int  # number of the first initial state
    episodes: int
    right: int
    donor: int | None  # choices that followed the donor's cue; None unless memories were exchanged
    successes: int
    each: str | None
    """With the live memory, a 1 for each right choice and a 0 for each other, in the order of the
    initial states, for paired tests; otherwise None."""


@dataclass(frozen=True)
class Figures:
    """All that the study has found so far."""

    settings: Mapping[str, Any]
    trainings: Sequence[Training]
    choices: Sequence[Choices]

    def to_json(self) -> str:
        """Return one line for each record, so that the file is small and differences are readable."""
        parts = [f'"settings": {json.dumps(dict(self.settings))}']
        for name, records in (("trainings", self.trainings), ("choices", self.choices)):
            present = [{k: v for k, v in vars(each).items() if v is not None} for each in records]
            parts.append(f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, present)) + "\n ]")
        return "{\n " + ",\n ".join(parts) + "\n}\n"


def read_figures(path: Path) -> Figures:
    """Read what `Figures.to_json` wrote. Raises `UserError` for any other file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        trainings = [Training(**each) for each in data["trainings"]]
        choices = [Choices(**{"donor": None, "each": None, **each}) for each in data["choices"]]
        if not trainings:
            raise ValueError("there is no training in it")
        return Figures(LATER_SETTINGS | data["settings"], trainings, choices)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no figures of this study ({error}); give a figures.json that it wrote"
        ) from error


def merged_figures(several: Sequence[Figures]) -> Figures:
    """Return the figures of several studies as those of one, such as studies of one task each.

    A setting in which they differ becomes the list of its values. Raises `UserError` if two of them
    hold the same evaluation.
    """
    choices = [each for figures in several for each in figures.choices]
    keys = Counter((each.variant, each.seed, each.task, each.gap, each.probe) for each in choices)
    for (variant, seed, task, gap, probe), number in keys.items():
        if number > 1:
            raise UserError(
                f"two of the studies hold {variant}, seed {seed}, in {task} at a gap of {gap} "
                f"({probe}); leave one of them out"
            )
    settings: dict[str, Any] = {}
    for name in dict.fromkeys(name for figures in several for name in figures.settings):
        values = [figures.settings.get(name) for figures in several]
        found = [value for place, value in enumerate(values) if value not in values[:place]]
        settings[name] = found[0] if len(found) == 1 else found
    return Figures(settings, [each for figures in several for each in figures.trainings], choices)


# What the report says of choices: pooled rates, and differences on the same initial states.


def pooled(choices: Iterable[Choices], *, donor: bool = False) -> Rate:
    """Return the right choices of several evaluations, or those that followed a donor's cue."""
    counts = [(each.donor if donor else each.right, each.episodes) for each in choices]
    known = [(count, episodes) for count, episodes in counts if count is not None]
    return Rate(sum(count for count, _ in known), sum(episodes for _, episodes in known))


class Difference(NamedTuple):
    """How much more often the first of two variants chose right."""

    test: PairedTest
    value: float  # the difference of the rates
    interval: tuple[float, float]  # its 95 % interval (Agresti and Min 2005)
    by_seed: Mapping[int, float]  # seed of the training -> difference of the rates


def paired_difference(first: Iterable[Choices], second: Iterable[Choices]) -> Difference | None:
    """Compare two variants at one gap, with their memories live.

    A pair is one initial state of one task, with policies of one training seed. None if the two
    have no evaluation in common.
    """

    def states(choices: Iterable[Choices]) -> dict[tuple[int, str, int, int], str]:
        live = (each for each in choices if each.probe == LIVE and each.each is not None)
        return {(e.seed, e.task, e.gap, e.first_seed): e.each or "" for e in live}

    theirs = states(second)
    pairs: dict[int, list[tuple[bool, bool]]] = {}
    for key, ours in states(first).items():
        both = zip(ours, theirs.get(key, ""), strict=False)
        pairs.setdefault(key[0], []).extend((one == "1", two == "1") for one, two in both)
    everything = [pair for of_seed in pairs.values() for pair in of_seed]
    if not everything:
        return None
    test = mcnemar_exact([one for one, _ in everything], [two for _, two in everything])
    # Wald's interval, after half an episode has been added to each of the four counts.
    mine, its, total = test.only_first + 0.5, test.only_second + 0.5, len(everything) + 2
    centre = (mine - its) / total
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    half = z * math.sqrt(max(0.0, mine + its - total * centre**2)) / total
    return Difference(
        test,
        (test.only_first - test.only_second) / len(everything),
        (max(-1.0, centre - half), min(1.0, centre + half)),
        {s: sum(one - two for one, two in of) / len(of) for s, of in pairs.items() if of},
    )


# The tables.

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
        return f"**{self.title}**\n\n{markdown(self.columns, self.rows, '---:')}"


class Report:
    """Makes the tables from figures."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        known = {training.variant for training in figures.trainings}
        self.variants = [name for name in VARIANTS if name in known]
        self.variants += sorted(known - set(self.variants))
        self.gaps = sorted({each.gap for each in figures.choices})
        self.tasks = sorted({each.task for each in figures.choices})
        probes = dict.fromkeys(each.probe for each in figures.choices)
        self.probes = sorted(probes, key=lambda probe: probe != LIVE)

    def heading(self) -> str:
        """Return the text above the tables."""
        trainings, settings = self.figures.trainings, self.figures.settings
        window = settings.get("window")
        windows = "episodes" if window == "episode" else f"windows of length {window}"
        return (
            f"Memory suite ({', '.join(self.tasks) or 'no evaluation yet'}): {len(trainings)} trainings "
            f"of {_range([each.steps for each in trainings])} steps of {settings.get('batch_size')} "
            f"{windows}, recall loss {settings.get('recall_weight')}; cores of "
            f"{_range([each.parameters for each in trainings])} parameters"
        )

    def grids(self) -> list[Grid]:
        """Return all tables that the figures allow."""
        grids = [self._choices("all tasks")] if self.gaps else []
        grids += [self._choices(task, task) for task in self.tasks if len(self.tasks) > 1]
        grids += [grid for grid in (self._differences(), self._probes()) if grid.rows]
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

    def cases(self) -> Iterator[tuple[str, int]]:
        """Yield the variants and gaps, in the order of the rows."""
        yield from ((variant, gap) for variant in self.variants for gap in self.gaps)

    def _choices(self, title: str, task: str | None = None) -> Grid:
        portions = [f"{later}/{earlier}" for earlier, later in pairwise(self.gaps)]
        all_seeds = {each.seed for each in self.figures.choices}
        whole = len(all_seeds) * (len(self.tasks) if task is None else 1)
        rows = []
        for variant in self.variants:
            found = [self.select(variant, gap, LIVE, task) for gap in self.gaps]
            rates = [pooled(of_gap) for of_gap in found]
            cells = [
                f"{rate.count}/{rate.episodes} {percent(rate, 0)}{'*' * (len(of_gap) != whole)}"
                if of_gap
                else "—"
                for rate, of_gap in zip(rates, found, strict=True)
            ]
            kept = [
                f"{later.rate / earlier.rate:.2f}" if earlier.count and later.episodes else "—"
                for earlier, later in pairwise(rates)
            ]
            seeds = {each.seed for of_gap in found for each in of_gap}
            rows.append([variant, str(len(seeds)), *cells, *kept])
        columns = ["core", "seeds", *(f"gap {gap}" for gap in self.gaps), *portions]
        return Grid(f"Right choices, {title}", columns, rows)

    def _differences(self) -> Grid:
        """Return how much better ours is than each other variant at each gap."""
        columns = ["ours against", "gap", "difference", "only ours", "only it", "p", "by seed"]
        rows = []
        for variant, gap in self.cases():
            found = paired_difference(self.select(OURS, gap), self.select(variant, gap))
            if variant == OURS or found is None:
                continue
            value, low, high = (100 * each for each in (found.value, *found.interval))
            rows.append(
                [
                    variant,
                    str(gap),
                    f"{value:+.1f} ({low:+.1f} to {high:+.1f})",
                    str(found.test.only_first),
                    str(found.test.only_second),
                    p_text(found.test.p_value),
                    " ".join(f"{100 * each:+.0f}" for _, each in sorted(found.by_seed.items())),
                ]
            )
        return Grid("Paired differences of right choices, in points", columns, rows)

    def _probes(self) -> Grid:
        others = [probe for probe in self.probes if probe != LIVE]
        swapped = any(each.donor is not None for each in self.figures.choices)
        rows = []
        for variant, gap in self.cases():
            found = [self.select(variant, gap, probe) for probe in (LIVE, *others)]
            cells = [percent(pooled(each), 0) for each in found]
            if swapped:
                cells.append(percent(pooled(self.select(variant, gap, SWAP), donor=True), 0))
            if any(found[1:]):
                rows.append([variant, str(gap), *cells])
        columns = ["core", "gap", LIVE, *others, *(["donor's"] if swapped else [])]
        return Grid("Right choices by what is done to the memory, all tasks", columns, rows)

    def _costs(self) -> Grid:
        columns = ["core", "parameters", "of the policy", "trainings", "steps", "minutes"]
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
                    f"{fmean(errors):.3f}" if errors else "—",
                ]
            )
        title = (
            "Trainings: means over all of them; error: of the actions in held-out demonstrations"
        )
        return Grid(title, [*columns, "s a step", "error"], rows)


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value, or the one that all have."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# The plot, and the table of a page.


def draw_choices(report: Report) -> str:
    """Return an SVG with a panel for each task, and one for each probe over all tasks.

    The panel of exchanged memories shows the choices that followed the donor.
    """
    titles = {LIVE: "right choice", SWAP: "donor's choice, memory swapped"}
    panels: dict[str, tuple[str, str | None]] = {}  # title -> probe, task
    for probe in report.probes:
        if probe == LIVE and len(report.tasks) > 1:
            panels |= {task: (probe, task) for task in report.tasks}
        else:
            panels[titles.get(probe, f"right choice, {probe}")] = (probe, None)
    return draw_rates(
        {
            title: [
                Point(variant, gap, pooled(found, donor=probe == SWAP))
                for variant, gap in report.cases()
                if (found := report.select(variant, gap, probe, task))
            ]
            for title, (probe, task) in panels.items()
        }
    )


def by_task(report: Report) -> str:
    """Return a Markdown table with a row for each core, gap and probe, and a column for each task."""
    rows = []
    for variant, gap in report.cases():
        for probe in report.probes:
            found = [report.select(variant, gap, probe, task) for task in report.tasks]
            seeds = _range([len(of_task) for of_task in found if of_task] or [0])
            cells = [percent(pooled(each), 0) if each else "" for each in found]
            if any(found):
                rows.append([f"`{variant}`", str(gap), probe, seeds, *cells])
    return markdown(["core", "gap", "memory", "seeds", *(f"`{t}`" for t in report.tasks)], rows)


def main(arguments: Sequence[str]) -> None:
    """Print the right choices in figures, in per cent, as a table for a page.

    arguments: files of figures, as the study writes them.
    """
    print(by_task(Report(merged_figures([read_figures(Path(each)) for each in arguments]))))


if __name__ == "__main__":
    main(sys.argv[1:])
