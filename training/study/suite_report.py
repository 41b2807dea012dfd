"""The tables of the study, for the terminal and as Markdown."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from rich.table import Table

from ttm.policy.errors import UserError
from ttm.sim.condition import LIVE
from ttm.sim.pages import Point, draw_rates
from ttm.sim.results import CONFIDENCE, Evaluation, PairedTest, Rate, TaskResult, mcnemar_exact
from ttm.training.console import compact_table
from ttm.training.study.suite_runs import LATER_SETTINGS, OURS, VARIANTS, RunFolder, run_folders

# The figures of the study: what a report is made from, as records and as one JSON file.

NOT_REPORTED = ("data", "init")
"""Settings that say nothing on another machine."""


@dataclass(frozen=True)
class Training:
    """One finished training."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    parameters: int
    """Number of parameters of the core."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    steps: int
    minutes: float
    validation_error: float | None
    """Of the actions in held-out demonstrations, in standard deviations; None if there are none."""


@dataclass(frozen=True)
class Choices:
    """What one policy chose in one task under one condition."""

    variant: str
    seed: int
    task: str
    gap: int
    probe: str
    first_seed: int
    """Number of the first initial state."""
    episodes: int
    right: int
    donor: int | None
    """Choices that followed the donor's cue; None unless memories were exchanged."""
    successes: int
    each: str | None
    """With the live memory, a 1 for each right choice and a 0 for each other, in the order of the
    initial states, for paired tests; otherwise None."""

    @property
    def rate(self) -> Rate:
        return Rate(self.right, self.episodes)


@dataclass(frozen=True)
class Figures:
    """All that the study has found so far. The fields are the format of the JSON file."""

    settings: Mapping[str, Any]
    trainings: Sequence[Training]
    choices: Sequence[Choices]

    def to_json(self) -> str:
        """Return one line for each record, so that the file is small and differences are readable."""
        records = {
            "trainings": [asdict(training) for training in self.trainings],
            "choices": [asdict(choices) for choices in self.choices],
        }
        parts = [f'"settings": {json.dumps(dict(self.settings))}']
        for name, values in records.items():
            lines = ",\n  ".join(json.dumps(_present(each)) for each in values)
            parts.append(f'"{name}": [\n  {lines}\n ]')
        return "{\n " + ",\n ".join(parts) + "\n}\n"


def read_figures(path: Path) -> Figures:
    """Read what `Figures.to_json` wrote. Raises `UserError` for any other file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        trainings = [
            Training(**{"validation_error": None, **fields}) for fields in data["trainings"]
        ]
        choices = [Choices(**{"donor": None, "each": None, **each}) for each in data["choices"]]
        if not trainings:
            raise ValueError("there is no training in it")
        return Figures(LATER_SETTINGS | data["settings"], trainings, choices)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no figures of this study ({error}); give a file that its --json wrote"
        ) from error


def merged_figures(several: Sequence[Figures]) -> Figures:
    """Return the figures of several studies as those of one, such as studies of one task each.

    A setting in which they differ becomes the list of its values. Raises `UserError` if two of them
    hold the same evaluation.
    """
    choices = [each for figures in several for each in figures.choices]
    keys = [(each.variant, each.seed, each.task, each.gap, each.probe) for each in choices]
    twice = next((key for key, number in Counter(keys).items() if number > 1), None)
    if twice is not None:
        variant, seed, task, gap, probe = twice
        raise UserError(
            f"two of the studies hold {variant}, seed {seed}, in {task} at a gap of {gap} ({probe}); "
            "leave one of them out"
        )
    trainings = [each for figures in several for each in figures.trainings]
    names = dict.fromkeys(name for figures in several for name in figures.settings)
    values = {name: _distinct([each.settings.get(name) for each in several]) for name in names}
    return Figures(
        {name: found[0] if len(found) == 1 else found for name, found in values.items()},
        trainings,
        choices,
    )


def collect_figures(out: Path) -> Figures:
    """Return what the folder of a study holds. Unfinished trainings are left out.

    Raises `UserError` if nothing is finished, or if trainings in it differ in their settings.
    """
    folders = [folder for folder in run_folders(out) if folder.training_result is not None]
    if not folders:
        raise UserError(f"{out} holds no finished training; make one without --report")
    _require_one_study(folders)
    settings = folders[0].facts.settings if folders[0].facts else {}
    return Figures(
        {name: value for name, value in settings.items() if name not in NOT_REPORTED},
        [_training(folder) for folder in folders],
        [each for folder in folders for each in _choices(folder)],
    )


def _require_one_study(folders: Sequence[RunFolder]) -> None:
    first = folders[0]
    for folder in folders[1:]:
        if folder.facts and first.facts and folder.facts.settings != first.facts.settings:
            raise UserError(
                f"{first.path} and {folder.path} were trained with different settings and cannot be "
                "compared; move one of them out of the folder"
            )


def _training(folder: RunFolder) -> Training:
    facts, result = folder.facts, folder.training_result
    assert facts is not None
    assert result is not None
    error = result["validation"]["policy"]["normalized"] if "validation" in result else None
    return Training(
        facts.variant,
        facts.seed,
        facts.core,
        facts.parameters,
        facts.all_parameters,
        result["step"],
        round(result["elapsed_s"] / 60, 2),
        None if error is None else round(error, 4),
    )


def _choices(folder: RunFolder) -> list[Choices]:
    return [
        _choices_of(folder, evaluation, result)
        for evaluation in folder.evaluations()
        for result in evaluation.tasks.values()
    ]


def _choices_of(folder: RunFolder, evaluation: Evaluation, result: TaskResult) -> Choices:
    facts, condition = folder.facts, evaluation.condition
    assert facts is not None
    assert condition.gap is not None
    made = [outcome.choice for outcome in result.outcomes]
    right = "".join(str(int(choice is not None and choice.is_right)) for choice in made)
    donors = result.donor_choices
    return Choices(
        facts.variant,
        facts.seed,
        result.task,
        condition.gap,
        condition.probe,
        evaluation.first_seed,
        result.episodes,
        right.count("1"),
        donors.count if donors else None,
        result.successes,
        right if condition.probe == LIVE else None,
    )


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return each value once, also where values cannot be hashed."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# What the report tells of choices: pooled rates, and differences on the same initial states.


def right_choices(choices: Iterable[Choices]) -> Rate:
    """Return the right choices of several evaluations together."""
    rates = [each.rate for each in choices]
    return Rate(sum(rate.count for rate in rates), sum(rate.episodes for rate in rates))


def donor_choices(choices: Iterable[Choices]) -> Rate:
    """Return the choices that followed the donor, of the evaluations that had one."""
    counts = [(each.donor, each.episodes) for each in choices if each.donor is not None]
    return Rate(sum(count for count, _ in counts), sum(episodes for _, episodes in counts))


@dataclass(frozen=True)
class Difference:
    """How much more often the first of two variants chose right."""

    test: PairedTest
    by_seed: Mapping[int, float]
    """Seed of the training -> difference of the rates."""

    @property
    def value(self) -> float:
        """The difference of the rates."""
        return self._with(0.0)[0]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference of paired rates (Agresti and Min 2005).

        It is Wald's, after half an episode has been added to each of the four counts.
        """
        value, deviation = self._with(0.5)
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        return max(-1.0, value - z * deviation), min(1.0, value + z * deviation)

    def _with(self, added: float) -> tuple[float, float]:
        """Return difference and standard deviation with `added` episodes in each of four counts."""
        test = self.test
        first, second = test.only_first + added, test.only_second + added
        total = test.both + test.neither + 2 * added + first + second
        value = (first - second) / total
        return value, math.sqrt(max(0.0, first + second - total * value**2)) / total


def paired_difference(first: Iterable[Choices], second: Iterable[Choices]) -> Difference | None:
    """Compare two variants at one gap, with their memories live.

    A pair is one initial state of one task, with policies of one training seed. None if the two
    have no evaluation in common.
    """
    theirs = {_key(each): each.each for each in second if each.probe == LIVE}
    pairs: dict[int, list[tuple[bool, bool]]] = {}
    for each in first:
        other = theirs.get(_key(each))
        if each.each is not None and other is not None:
            pairs.setdefault(each.seed, []).extend(
                (one == "1", two == "1") for one, two in zip(each.each, other, strict=False)
            )
    if not pairs:
        return None
    everything = [pair for of_seed in pairs.values() for pair in of_seed]
    test = mcnemar_exact([one for one, _ in everything], [two for _, two in everything])
    by_seed = {seed: sum(one - two for one, two in of) / len(of) for seed, of in pairs.items()}
    return Difference(test, by_seed)


def _key(each: Choices) -> tuple[int, str, int, int]:
    return each.seed, each.task, each.gap, each.first_seed


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


# The plot of the study: choices over the gap, a curve for each core.

SWAP = "swap"


def draw_choices(report: Report) -> str:
    """Return an SVG with a panel for each task, and one for each probe over all tasks.

    The panel of exchanged memories shows the choices that followed the donor.
    """
    measures: list[tuple[str, str, str | None]] = []  # title, probe, task
    for probe in report.probes:
        if probe == LIVE and len(report.tasks) > 1:
            measures += [(task, probe, task) for task in report.tasks]
        else:
            measures.append((_title(probe), probe, None))
    return draw_rates({title: _points(report, probe, task) for title, probe, task in measures})


def _points(report: Report, probe: str, task: str | None) -> list[Point]:
    counted = donor_choices if probe == SWAP else right_choices
    return [
        Point(variant, gap, counted(found))
        for variant in report.variants
        for gap in report.gaps
        if (found := report.select(variant, gap, probe, task))
    ]


def _title(probe: str) -> str:
    if probe == LIVE:
        return "right choice"
    return "donor's choice, memory swapped" if probe == SWAP else f"right choice, {probe}"
