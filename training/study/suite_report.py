"""The figures of `ttm study suite`: one JSON file, tables and a plot that are made from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ttm.datasets.console import TitledTable
from ttm.policy.cores.registry import TTM
from ttm.policy.errors import UserError
from ttm.sim.condition import LIVE
from ttm.sim.pages import Point, draw_rates
from ttm.sim.results import PairedTest, Rate, mcnemar_exact
from ttm.training.console import compact_table
from ttm.training.study.common import p_text, percent

OURS = "ours"  # the name of our Token Turing Machine; `TTM` is the published one
VARIANTS = (OURS, TTM, "none", "lstm", "tlb", "hourglass", "transformer", "frame-stacking")
"""What is compared by default, in the order of the tables."""
SWAP = "swap"


@dataclass(frozen=True)
class Training:
    """One finished training. The fields of this and the next two classes are the format of the JSON file."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    parameters: int  # of the core
    all_parameters: int  # of the whole policy
    steps: int
    minutes: float
    validation_error: float | None = None
    """Of the actions in held-out demonstrations, in standard deviations; None if there are none."""
    cpu_minutes: float | None = None
    """Of the CPU, all in all."""
    cost: Mapping[str, float] | None = None
    """With equal CPU time: seconds of the CPU of a step, of one of the recall loss alone, and the former as a
    portion of that of the LSTM, by the names of `Cost`."""


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
        return Figures(data["settings"], trainings, choices)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no figures of this study ({error}); give a figures.json that it wrote"
        ) from error


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
    low, high = test.interval
    return Difference(
        test,
        (test.only_first - test.only_second) / len(everything),
        (-high, -low),
        {s: sum(one - two for one, two in of) / len(of) for s, of in pairs.items() if of},
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, least = list(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[place]))
        found[place] = least
    return found


def difference_rows(compared: Mapping[tuple[Any, ...], Difference]) -> list[list[Any]]:
    """Return what is compared, difference, counts, corrected p and differences by seed of each."""
    corrected, rows = iter(holm([found.test.p_value for found in compared.values()])), []
    for what, found in compared.items():
        value, low, high = (100 * each for each in (found.value, *found.interval))
        difference = f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
        counts = found.test.only_first, found.test.only_second, p_text(next(corrected))
        by_seed = " ".join(f"{100 * each:+.0f}" for _, each in sorted(found.by_seed.items()))
        rows.append([*what, difference, *counts, by_seed])
    return rows


def select(choices: Iterable[Choices], variant: str, tasks: Collection[str]) -> list[Choices]:
    """Return the evaluations of a variant in some tasks."""
    return [each for each in choices if each.variant == variant and each.task in tasks]


Columns = Mapping[str, Collection[str]]
"""Titles of columns -> the tasks whose episodes each has together."""


def success_table(
    title: str, choices: Sequence[Choices], rows: Mapping[Any, str], columns: Columns
) -> TitledTable:
    """Return the rates of each variant, which `rows` name. A star: others have more evaluations there."""
    cells = [[name] for name in rows]
    for tasks in columns.values():
        found = [select(choices, variant, tasks) for variant in rows.values()]
        most = max(map(len, found), default=0)
        for row, of in zip(cells, found, strict=True):
            row.append(percent(pooled(of), 0) + "*" * (0 < len(of) < most))
    return _table(title, ["policy", *columns], cells)


def differences_table(
    title: str, choices: Sequence[Choices], rows: Mapping[Any, str], columns: Columns
) -> TitledTable:
    """Return the paired differences of the first variant from each of the others."""
    first, *others = rows
    compared = {
        (name, column): found
        for (column, tasks), name in product(columns.items(), others)
        for ours in [select(choices, rows[first], tasks)]
        if (found := paired_difference(ours, select(choices, rows[name], tasks)))
    }
    header = [f"{first} against", "task", "difference", f"only {first}", "only it", "p", "by seed"]
    return _table(title, header, difference_rows(compared))


NOTES = """\
Each cell: right choices of all episodes, in %, with Wilson's 95 % interval over the episodes. It does
not say how much another training would differ; for that see the differences by seed. To choose nothing
counts as wrong. A star: other variants have more seeds or tasks there.
45/15: the rate at a gap of 45 ticks as a portion of that at 15. only ours, only it: initial states in
which one of the two chose right. p: McNemar's exact test with Holm's correction over the rows of a table;
difference: with the 95 % interval of Agresti and Min (2005). Pairs are the same state with trainings of
the same seed.
donor's: with the memory of an episode of another cue, choices of what that cue asked for."""


class Report:
    """Makes tables and plot from figures, which `notes` explain."""

    notes = NOTES

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        known = {training.variant for training in figures.trainings}
        self.variants = [name for name in VARIANTS if name in known]
        self.variants += sorted(known - set(self.variants))
        self.gaps = sorted({each.gap for each in figures.choices})
        self.tasks = sorted({each.task for each in figures.choices})
        probes = dict.fromkeys(each.probe for each in figures.choices)
        self.probes = sorted(probes, key=lambda probe: probe != LIVE)
        self.cases = list(product(self.variants, self.gaps))
        """The variants and gaps, in the order of the rows."""

    def heading(self) -> str:
        """Return the text above the tables."""
        trainings, settings = self.figures.trainings, self.figures.settings
        return (
            f"Memory suite ({', '.join(self.tasks) or 'no evaluation yet'}): {len(trainings)} trainings "
            f"of {_range([each.steps for each in trainings])} steps of {settings.get('batch_size')} "
            f"episodes, recall loss {settings.get('recall_weight')}; cores of "
            f"{_range([each.parameters for each in trainings])} parameters"
        )

    def tables(self) -> list[TitledTable]:
        """Return all tables that the figures allow."""
        tables = [self._choices("all tasks")] if self.gaps else []
        tables += [self._choices(task, task) for task in self.tasks if len(self.tasks) > 1]
        scopes = [(None, "all tasks"), *((t, t) for t in self.tasks if len(self.tasks) > 1)]
        more = [*(self._differences(title, task) for task, title in scopes), self._probes()]
        tables += [table for table in more if table.rows]
        return [*tables, self._costs()]

    def _select(
        self, variant: str, gap: int, probe: str = LIVE, task: str | None = None
    ) -> list[Choices]:
        """Return the evaluations of a variant at a gap, of one task or of all."""
        wanted = variant, gap, probe
        return [
            each
            for each in self.figures.choices
            if (each.variant, each.gap, each.probe) == wanted and task in (None, each.task)
        ]

    def _choices(self, title: str, task: str | None = None) -> TitledTable:
        all_seeds = {each.seed for each in self.figures.choices}
        whole = len(all_seeds) * (len(self.tasks) if task is None else 1)
        rows = []
        for variant in self.variants:
            found = [self._select(variant, gap, LIVE, task) for gap in self.gaps]
            rates = [pooled(of_gap) for of_gap in found]
            cells = [
                f"{rate.count}/{rate.episodes} {percent(rate, 0)}{'*' * (len(of_gap) != whole)}"
                if of_gap
                else "—"
                for rate, of_gap in zip(rates, found, strict=True)
            ]
            cells += [
                f"{later.rate / earlier.rate:.2f}" if earlier.count and later.episodes else "—"
                for earlier, later in pairwise(rates)
            ]
            seeds = {each.seed for of_gap in found for each in of_gap}
            rows.append([variant, len(seeds), *cells])
        columns = ["core", "seeds", *(f"gap {gap}" for gap in self.gaps)]
        columns += [f"{later}/{earlier}" for earlier, later in pairwise(self.gaps)]
        return _table(f"Right choices, {title}", columns, rows)

    def _differences(self, title: str, task: str | None) -> TitledTable:
        compared = {
            (variant, gap): found
            for variant, gap in self.cases
            if variant != OURS
            for ours in [self._select(OURS, gap, LIVE, task)]
            if (found := paired_difference(ours, self._select(variant, gap, LIVE, task)))
        }
        columns = ["ours against", "gap", "difference", "only ours", "only it", "p", "by seed"]
        return _table(
            f"Paired differences of right choices, in points, {title}",
            columns,
            difference_rows(compared),
        )

    def _probes(self) -> TitledTable:
        others = [probe for probe in self.probes if probe != LIVE]
        donors = ["donor's"] if any(e.donor is not None for e in self.figures.choices) else []
        rows = []
        for variant, gap in self.cases:
            found = [self._select(variant, gap, probe) for probe in (LIVE, *others)]
            cells = [percent(pooled(each), 0) for each in found]
            if donors:
                cells.append(percent(pooled(self._select(variant, gap, SWAP), donor=True), 0))
            if any(found[1:]):
                rows.append([variant, gap, *cells])
        title = "Right choices by what is done to the memory, all tasks"
        return _table(title, ["core", "gap", LIVE, *others, *donors], rows)

    def _costs(self) -> TitledTable:
        rows = []
        for variant in self.variants:
            of = [training for training in self.figures.trainings if training.variant == variant]
            steps = [training.steps for training in of]
            minutes = fmean(training.minutes for training in of)
            sizes = _range([each.parameters for each in of]), _range([e.all_parameters for e in of])
            times = f"{minutes:.1f}", f"{60 * minutes / fmean(steps):.2f}"
            rows.append([variant, *sizes, len(of), _range(steps), *times])
            rows[-1] += [
                _mean((each.validation_error for each in of), 3),
                _mean((each.cpu_minutes for each in of), 1),
                *(_mean(((e.cost or {}).get(n) for e in of), 3) for n in ("step_s", "of_lstm")),
            ]
        title = "Trainings: means over all; error: of the actions in held-out demonstrations"
        columns = ["core", "parameters", "of the policy", "trainings", "steps", "minutes"]
        columns += ["s a step", "error", "CPU minutes", "CPU s", "of lstm"]
        shown = [place for place, of in enumerate(zip(*rows, strict=True)) if set(of) != {"—"}]
        rows = [[row[place] for place in shown] for row in rows]
        return _table(title, [columns[place] for place in shown], rows)

    def draw(self) -> str:
        """Return an SVG with a panel for each task, and one for each probe over all tasks.

        The panel of exchanged memories shows the choices that followed the donor.
        """
        titles = {LIVE: "right choice", SWAP: "donor's choice, memory swapped"}
        panels: dict[str, tuple[str, str | None]] = {}  # title -> probe, task
        for probe in self.probes:
            if probe == LIVE and len(self.tasks) > 1:
                panels |= {task: (probe, task) for task in self.tasks}
            else:
                panels[titles.get(probe, f"right choice, {probe}")] = (probe, None)
        return draw_rates(
            {
                title: [
                    Point(variant, gap, pooled(found, donor=probe == SWAP))
                    for variant, gap in self.cases
                    if (found := self._select(variant, gap, probe, task))
                ]
                for title, (probe, task) in panels.items()
            }
        )


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> TitledTable:
    """Return a table of which the widest column is wrapped first in a narrow terminal."""
    table = compact_table(title, columns, rows)
    for number, column in enumerate(table.columns):
        column.no_wrap = number == 0 and all(len(str(name)) < 16 for name in column.cells)
    return table


def _mean(values: Iterable[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.{digits}f}" if known else "—"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
