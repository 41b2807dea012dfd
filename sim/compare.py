"""Reading results of `ttm evaluate` from their folders, and comparing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from tyro.conf import Positional, arg

from ttm.policy.errors import UserError, require_some
from ttm.policy.files import write_atomically
from ttm.sim.condition import PROBE_DESCRIPTIONS, Condition
from ttm.sim.pages import Point, draw_rates, encoded, memory_path, render_page, video_path
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

# The options of `ttm compare`.


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
    out: Path = Path("comparison")
    """Folder for report.html; open it in a browser."""

    def run(self) -> int:
        """Compare; return the exit code."""

        return compare_and_report(self.results, self.out)


# Any number of evaluations beside each other: rates, paired tests, and one page.

TEMPLATE = "comparison.html.j2"


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
class Pair:
    """Two entries on the initial states that both started from."""

    task: str
    measure: Measure
    first: Entry
    second: Entry
    test: PairedTest


def tasks_of_entries(entries: Sequence[Entry]) -> list[str]:
    """Return the names of all tasks that any of the entries has, in their order."""
    return list(dict.fromkeys(task for entry in entries for task in entry.evaluation.tasks))


def pairs_of(entries: Sequence[Entry]) -> list[Pair]:
    """Compare every entry with the first one of the same gap, and the first ones with the very first.

    Raises `UserError` if the entries are of different environments.
    """
    found = [
        Pair(task, measure, first, second, test)
        for first, second in _partners(entries)
        for measure in get_args(Measure)
        for task, test in compare(first.evaluation, second.evaluation, measure).items()
    ]
    order = tasks_of_entries(entries)
    return sorted(found, key=lambda pair: order.index(pair.task))


def _partners(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    first_of_gap: dict[int | None, Entry] = {}
    for entry in entries:
        if entry.gap in first_of_gap:
            yield first_of_gap[entry.gap], entry
        else:
            first_of_gap[entry.gap] = entry
            if entry is not entries[0]:
                yield entries[0], entry


def rates_table(entries: Sequence[Entry]) -> str:
    """Return one line for each task and entry, with aligned columns, for the terminal.

    Columns of choices are there if any task has them.
    """
    results = list(_results(entries))
    columns = ["success", "right choice", "donor's choice"]
    rates = [[_success(result), result.choices, result.donor_choices] for _, _, result in results]
    used = [place for place in range(3) if any(row[place] for row in rates)]
    rows = [["task", "evaluation", *(columns[place] for place in used)]]
    for (task, entry, _), row in zip(results, rates, strict=True):
        rows.append([task, entry.label, *(_in_words(row[place]) for place in used)])
    return _aligned(rows)


def pairs_table(pairs: Sequence[Pair]) -> str:
    """Return one line for each pair, with aligned columns, for the terminal.

    Of tasks with choices it tells the choices alone. The page tells success, too.
    """
    with_choices = {pair.task for pair in pairs if pair.measure == "choice"}
    rows = [["task", "first", "second", "both", "only first", "only second", "neither", "p"]]
    for pair in pairs:
        if pair.measure == ("choice" if pair.task in with_choices else "success"):
            test = pair.test
            counts = test.both, test.only_first, test.only_second, test.neither
            names = pair.task, pair.first.label, pair.second.label
            rows.append([*names, *map(str, counts), f"{test.p_value:.2g}"])
    return _aligned(rows)


def print_comparison(entries: Sequence[Entry]) -> None:
    """Print the rates and, if there is anything to compare, the paired tests."""
    print(rates_table(entries))
    pairs = pairs_of(entries)
    if pairs:
        print("\nthe same initial states in pairs, by McNemar's exact test:")
        print(pairs_table(pairs))


def write_comparison(path: Path, title: str, entries: Sequence[Entry], intro: str = "") -> Path:
    """Write the page to `path` and return that."""
    page = render_page(TEMPLATE, title=title, intro=intro, comparison=comparison_values(entries))
    write_atomically(path, page)
    return path


def comparison_values(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the template comparison_body.html.j2 shows of the entries."""
    results = list(_results(entries))
    probes = dict.fromkeys(entry.evaluation.condition.probe for entry in entries)
    return {
        "charts": [{"task": t, "svg": _chart(t, entries)} for t in tasks_of_entries(entries)],
        "rows": [(entry, _success(result), result) for _, entry, result in results],
        "choices": any(result.choices for _, _, result in results),
        "donors": any(result.donor_choices for _, _, result in results),
        "pairs": pairs_of(entries),
        "probes": {p: PROBE_DESCRIPTIONS[p] for p in probes} if len(probes) > 1 else {},
        "films": list(_films(entries)),
        "entries": entries,
    }


def _results(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry, TaskResult]]:
    """Yield task by task what each entry has of it."""
    for task in tasks_of_entries(entries):
        for entry in entries:
            if task in entry.evaluation.tasks:
                yield task, entry, entry.evaluation.tasks[task]


def _success(result: TaskResult) -> Rate:
    return Rate(result.successes, result.episodes)


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


def _chart(task: str, entries: Sequence[Entry]) -> str:
    """Return the rates of the task as SVG: choices if there are any, and success."""
    choices, successes = [], []
    for entry in entries:
        result = entry.evaluation.tasks.get(task)
        if result is None:
            continue
        successes.append(Point(entry.series, entry.gap, _success(result)))
        if result.choices:
            choices.append(Point(entry.series, entry.gap, result.choices))
        if result.donor_choices:
            choices.append(
                Point(f"{entry.series}: donor's choice", entry.gap, result.donor_choices)
            )
    measures = {"right choice": choices, "success": successes}
    return draw_rates({name: points for name, points in measures.items() if points})


def _films(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield what was filmed of each initial state of a task and each gap, of all entries together.

    Pictures of the memory are beside the videos, of those entries that have any.
    """
    found: dict[tuple[str, int, int | None], tuple[list[Any], list[Any]]] = {}
    for task, entry, result in _results(entries):
        for outcome in result.outcomes:
            films, pictures = found.setdefault((task, outcome.seed, entry.gap), ([], []))
            video = video_path(entry.videos, task, outcome.seed)
            if video and video.is_file():
                films.append({"label": entry.series, "outcome": outcome, "data": encoded(video)})
            picture = memory_path(entry.videos, task, outcome.seed)
            if picture and picture.is_file():
                pictures.append({"label": entry.series, "data": encoded(picture)})
    for (task, seed, gap), (films, pictures) in found.items():
        if films:
            yield {"task": task, "seed": seed, "gap": gap, "films": films, "pictures": pictures}


def compare_and_report(results: Sequence[Path], out: Path) -> int:
    """Print the rates and the paired tests of all `results`, and write report.html into `out`.

    Returns the exit code. Raises `UserError` if a result is missing, named twice, or of another
    environment than the first.
    """
    require_some({"RESULT": results})
    entries = [entry for path in results for entry in read_entries(path)]
    _require_different(entries)
    page = write_comparison(out / "report.html", "Evaluations compared", entries)
    print_comparison(entries)
    print(f"report: {page}")
    return 0


def read_entries(path: Path) -> list[Entry]:
    """Return the evaluation of an `--out` folder, or those of its combinations of gap and probe.

    Raises `UserError` if there is none.
    """
    if path.is_dir() and not (path / RESULT_FILE).is_file():
        files = sorted(path.glob(f"*/{RESULT_FILE}"))
        if files:
            entries = [_entry(path, file) for file in files]
            return sorted(entries, key=lambda entry: _order(entry.evaluation))
    return [_entry(path, path / RESULT_FILE if path.is_dir() else path)]


def _entry(path: Path, file: Path) -> Entry:
    """Return the evaluation, named for `path` and what its condition adds to the plain one."""
    evaluation = load_evaluation(file)
    series = evaluation.condition.series
    name = str(path) if series == Condition().series else f"{path} ({series})"
    return Entry(name, evaluation, file.parent / VIDEOS)


def _order(evaluation: Evaluation) -> tuple[int, int, str]:
    """Order by gap, and then as the probes are listed, "live" first."""
    condition = evaluation.condition
    gap = -1 if condition.gap is None else condition.gap
    return gap, list(PROBE_DESCRIPTIONS).index(condition.probe), condition.series


def _require_different(entries: Sequence[Entry]) -> None:
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{label} is named twice; name each evaluation once")
