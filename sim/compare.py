"""`ttm compare`: any number of evaluations beside each other, with rates, paired tests, and one page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, get_args

from tyro.conf import Positional, arg

from ttm.policy.errors import UserError, require_some
from ttm.sim.condition import PROBE_DESCRIPTIONS, Condition
from ttm.sim.pages import Point, draw_rates, encoded, memory_path, video_path, write_page
from ttm.sim.results import (
    RESULT_FILE,
    VIDEOS,
    Evaluation,
    Measure,
    PairedTest,
    Rate,
    TaskResult,
    compare,
    load_evaluation,
)


@dataclass(frozen=True)
class CompareCommand:
    """Compare any number of evaluations: rates with intervals, paired tests, and one page.

    Every evaluation is compared with the first one of the same gap, on the initial states that both
    started from (McNemar's exact test), by success and, in memory tasks, by choice. An evaluation with
    several gaps or probes counts as one for each of their combinations.

    For example:
      ttm compare runs/ours runs/lstm runs/none --out runs/comparison
    """

    results: Annotated[Positional[tuple[Path, ...]], arg(metavar="RESULT …")]
    """Folders that `ttm evaluate --out` has written, or the result.json in them."""
    out: Path
    """Folder for report.html; open it in a browser."""

    def run(self) -> int:
        """Print the rates and the paired tests, and write the page."""
        require_some({"RESULT": self.results})
        entries = [entry for path in self.results for entry in read_entries(path)]
        labels = [entry.label for entry in entries]
        for label in labels:
            if labels.count(label) > 1:
                raise UserError(f"{label} is named twice; name each evaluation once")
        page = write_report(self.out / "report.html", "Evaluations compared", entries)
        print_comparison(entries)
        print(f"report: {page}")
        return 0


@dataclass(frozen=True)
class Entry:
    """One evaluation among others."""

    series: str
    """What it shares with evaluations of the same kind at other gaps."""
    evaluation: Evaluation
    videos: Path | None = None
    """Folder of videos and pictures, named as `video_path` and `memory_path` do."""

    @property
    def gap(self) -> int | None:
        return self.evaluation.condition.gap

    @property
    def label(self) -> str:
        return self.series if self.gap is None else f"{self.series}, gap {self.gap}"


@dataclass(frozen=True)
class Comparison:
    """Entries that have a chapter of their own in a page about something else."""

    title: str
    intro: str
    entries: Sequence[Entry]


@dataclass(frozen=True)
class Fact:
    """A row of the table of steps: what was done, what came of it, and how long it took."""

    name: str
    finding: str
    seconds: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two entries on the initial states that both started from."""

    task: str
    measure: Measure
    first: Entry
    second: Entry
    test: PairedTest


def read_entries(path: Path) -> list[Entry]:
    """Return the evaluation of an `--out` folder, or those of its combinations by gap and probe.

    Raises `UserError` if there is none.
    """
    files = [path / RESULT_FILE if path.is_dir() else path]
    if path.is_dir() and not files[0].is_file():
        files = sorted(path.glob(f"*/{RESULT_FILE}")) or files
    entries = []
    for file in files:
        evaluation = load_evaluation(file)
        series = evaluation.condition.series
        name = str(path) if series == Condition().series else f"{path} ({series})"
        entries.append(Entry(name, evaluation, file.parent / VIDEOS))
    return sorted(entries, key=_order)


def _order(entry: Entry) -> tuple[int, int, str]:
    condition, gap = entry.evaluation.condition, -1 if entry.gap is None else entry.gap
    return gap, list(PROBE_DESCRIPTIONS).index(condition.probe), condition.series


def pairs_of(entries: Sequence[Entry]) -> list[Pair]:
    """Compare every entry with the first one of the same gap, and the first ones with the very first."""
    found, first_of_gap = [], dict[int | None, Entry]()
    for entry in entries:
        first = first_of_gap.setdefault(entry.gap, entry)
        first = entries[0] if first is entry else first
        for measure in get_args(Measure) if first is not entry else ():
            tests = compare(first.evaluation, entry.evaluation, measure)
            found += [Pair(task, measure, first, entry, test) for task, test in tests.items()]
    order = _tasks_of(entries)
    return sorted(found, key=lambda pair: order.index(pair.task))


def _tasks_of(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(task for entry in entries for task in entry.evaluation.tasks))


def _results(entries: Sequence[Entry]) -> Iterator[tuple[Entry, TaskResult]]:
    """Yield task by task what each entry has of it."""
    for task in _tasks_of(entries):
        for entry in entries:
            if task in entry.evaluation.tasks:
                yield entry, entry.evaluation.tasks[task]


def rates_table(entries: Sequence[Entry]) -> str:
    """Return one line for each task and entry, for the terminal; with choices if any task has them."""
    results = list(_results(entries))
    names = list(dict.fromkeys(name for _, result in results for name in result.rates))
    rows = [[r.task, e.label, *(_in_words(r.rates.get(n)) for n in names)] for e, r in results]
    return _aligned([["task", "evaluation", *names], *rows])


def pairs_table(pairs: Sequence[Pair]) -> str:
    """Return one line for each pair, for the terminal: of choices where there are any, else of success."""
    with_choices = {pair.task for pair in pairs if pair.measure == "choice"}
    rows = [
        ["task", "first", "second", "both", "only first", "only second", "neither", "change", "p"]
    ]
    for pair in pairs:
        if pair.measure == ("choice" if pair.task in with_choices else "success"):
            test = pair.test
            counts = test.both, test.only_first, test.only_second, test.neither
            names = pair.task, pair.first.label, pair.second.label
            rows.append([*names, *map(str, (*counts, test)), f"{test.p_value:.2g}"])
    return _aligned(rows)


def _in_words(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    low, high = rate.interval
    return f"{rate.count} of {rate.episodes} = {rate.rate:.0%} ({low:.0%} to {high:.0%})"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def print_comparison(entries: Sequence[Entry]) -> None:
    """Print the rates and, if there is anything to compare, the paired tests."""
    print(rates_table(entries))
    if pairs := pairs_of(entries):
        print("\nthe same initial states in pairs, by McNemar's exact test, with 95 % intervals:")
        print(pairs_table(pairs))


def write_report(
    path: Path,
    title: str,
    entries: Sequence[Entry],
    facts: Sequence[Fact] = (),
    intro: str = "",
    chapters: Sequence[Comparison] = (),
) -> Path:
    """Write the page to `path` and return that.

    `facts` are the rows of a table of steps, `intro` is a sentence below the title, and `chapters` compare
    other evaluations.
    """
    probes = dict.fromkeys(entry.evaluation.condition.probe for entry in entries)
    return write_page(
        path,
        "report.html.j2",
        title=title,
        intro=intro,
        probes={p: PROBE_DESCRIPTIONS[p] for p in probes} if len(probes) > 1 else {},
        values=_values(entries),
        facts=facts,
        chapters=[(chapter, _values(chapter.entries)) for chapter in chapters],
    )


def _values(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the template comparison.html.j2 shows of the entries."""
    results = list(_results(entries))
    films, pictures = _films(entries)
    opening = _opening(films)
    return {
        "tasks": _tasks_of(entries),
        "charts": _charts(entries),
        "rows": results,
        "choices": any(result.choices for _, result in results),
        "donors": any(result.donor_choices for _, result in results),
        "pairs": pairs_of(entries),
        "opening": opening,
        "films": [film for film in films if film not in opening],
        "pictures": pictures,
        "entries": entries,
    }


def _charts(entries: Sequence[Entry]) -> dict[str, str]:
    """Return SVGs of choices and success: of each task over several gaps, or as "" of all side by side."""
    points: dict[str, dict[str, list[Point]]] = {}
    for entry, result in _results(entries):
        for name, rate in result.rates.items():
            own = name in ("right choice", "success")
            point = Point(entry.series if own else f"{entry.series}: {name}", entry.gap, rate)
            panels = points.setdefault(result.task, {})
            panels.setdefault(name if own else "right choice", []).append(point)
    if len({entry.gap for entry in entries} - {None}) < 2:
        together = {f"{t}: {name}": of for t, each in points.items() for name, of in each.items()}
        points = {"": together} if len(entries) > 3 else {}
    return {task: draw_rates(panels) for task, panels in points.items()}


def _films(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the videos and the pictures of all entries, those of an initial state beside each other."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    pictures = []
    for entry, result in _results(entries):
        for outcome in result.outcomes if entry.videos else ():
            assert entry.videos
            file = (entry.videos, result.task, outcome.seed)
            place = f"{result.task}, initial state {outcome.seed}"
            if film := encoded(video_path(*file)):
                state = (result.task, outcome.seed, -1 if entry.gap is None else entry.gap)
                about = {"label": entry.label, "place": place, "state": state, "outcome": outcome}
                found.append((state, {**about, "data": film}))
            if picture := encoded(memory_path(*file)):
                pictures.append({"label": f"{entry.label}: {place}", "data": picture})
    return [film for _, film in sorted(found, key=lambda each: each[0])], pictures


def _opening(films: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return two films: a success and a failure if there are both, best from the same initial state."""

    def order(pair: Iterable[dict[str, Any]]) -> tuple[bool, bool]:
        first, second = pair
        contrast = first["outcome"].success > second["outcome"].success
        return not contrast, first["state"] != second["state"]

    return list(min(map(list, permutations(films, 2)), key=order, default=films))
