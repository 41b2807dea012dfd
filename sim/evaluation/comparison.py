"""Any number of evaluations beside each other: rates, paired tests, and one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ttm.policy.files import write_atomically
from ttm.sim.evaluation.condition import PROBE_DESCRIPTIONS
from ttm.sim.evaluation.curves import Point, draw_rates
from ttm.sim.evaluation.intervals import PairedTest
from ttm.sim.evaluation.page import render_page
from ttm.sim.evaluation.report import video_data, video_path
from ttm.sim.evaluation.result import (
    Evaluation,
    Measure,
    Rate,
    TaskResult,
    compare,
    describe_test,
)

TEMPLATE = "comparison.html.j2"


@dataclass(frozen=True)
class Entry:
    """One evaluation among others."""

    series: str
    """What it shares with evaluations of the same kind at other gaps."""
    evaluation: Evaluation
    videos: Path | None = None
    """Folder of videos, named as `video_path` does."""

    @property
    def gap(self) -> int | None:
        return self.evaluation.condition.gap

    @property
    def label(self) -> str:
        return self.series if self.gap is None else f"{self.series}, gap {self.gap}"


@dataclass(frozen=True)
class Pair:
    """Two entries on the initial states that both started from."""

    task: str
    measure: Measure
    first: Entry
    second: Entry
    test: PairedTest

    def __str__(self) -> str:
        names = f"“{self.first.label}”", f"“{self.second.label}”"
        return f"{self.task}: {describe_test(self.test, *names, self.measure)}"


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
    """Return one line for each task and entry, with aligned columns, for the terminal."""
    rows = [["task", "evaluation", "success", "95 % interval", "right choice", "95 % interval"]]
    for task, entry, result in _results(entries):
        success = _columns(Rate(result.successes, result.episodes))
        rows.append([task, entry.label, *success, *_columns(result.choices)])
    if not any(result.choices for _, _, result in _results(entries)):
        rows = [row[:4] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def write_comparison(path: Path, title: str, entries: Sequence[Entry], intro: str = "") -> Path:
    """Write the page to `path` and return that."""
    results = list(_results(entries))
    probes = dict.fromkeys(entry.evaluation.condition.probe for entry in entries)
    page = render_page(
        TEMPLATE,
        title=title,
        intro=intro,
        charts=[{"task": t, "svg": _chart(t, entries)} for t in tasks_of_entries(entries)],
        rows=[
            (entry, Rate(result.successes, result.episodes), result) for _, entry, result in results
        ],
        choices=any(result.choices for _, _, result in results),
        donors=any(result.donor_choices for _, _, result in results),
        pairs=pairs_of(entries),
        probes={p: PROBE_DESCRIPTIONS[p] for p in probes} if len(probes) > 1 else {},
        films=list(_films(entries)),
        entries=entries,
    )
    write_atomically(path, page)
    return path


def _results(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry, TaskResult]]:
    """Yield task by task what each entry has of it."""
    for task in tasks_of_entries(entries):
        for entry in entries:
            if task in entry.evaluation.tasks:
                yield task, entry, entry.evaluation.tasks[task]


def _columns(rate: Rate | None) -> tuple[str, str]:
    if rate is None:
        return "-", ""
    low, high = rate.interval
    return f"{rate.count} of {rate.episodes} = {rate.rate:.0%}", f"{low:.0%} to {high:.0%}"


def _chart(task: str, entries: Sequence[Entry]) -> str:
    """Return the rates of the task as SVG: choices if there are any, success, and donor's choices."""
    measures: dict[str, list[Point]] = {"right choice": [], "success": [], "donor's choice": []}
    for entry in entries:
        result = entry.evaluation.tasks.get(task)
        if result is None:
            continue
        success = Rate(result.successes, result.episodes)
        rates = (result.choices, success, result.donor_choices)
        for points, rate in zip(measures.values(), rates, strict=True):
            points += [Point(entry.series, entry.gap, rate)] if rate else []
    return draw_rates({name: points for name, points in measures.items() if points})


def _films(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield for each initial state of a task and each gap the videos of all entries that filmed it."""
    found: dict[tuple[str, int, int | None], list[dict[str, Any]]] = {}
    for task, entry, result in _results(entries):
        for outcome in result.outcomes if entry.videos else ():
            path = video_path(entry.videos, task, outcome.seed)
            if path and path.is_file():
                film = {"label": entry.series, "outcome": outcome, "data": video_data(path)}
                found.setdefault((task, outcome.seed, entry.gap), []).append(film)
    for (task, seed, gap), films in found.items():
        yield {"task": task, "seed": seed, "gap": gap, "films": films}
