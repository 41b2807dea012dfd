"""The tables of `ttm data show`: an overview of a data set, its ranges and its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from rich import box
from rich.markup import escape
from rich.table import Table

from ttm.datasets.action_checks import limits_text
from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.observations.member_table import TITLE, member_rows
from ttm.datasets.statistics import VectorStatistics, dataset_statistics
from ttm.datasets.tables import TitledTable
from ttm.policy.spec import RATES_HZ, PolicySpec


def overview_table(episodes: EpisodeDataset) -> Table:
    """Return the robot, files, episodes, steps, rate, cameras, success and note."""
    spec = episodes.spec
    lengths = [episode.num_samples for episode in episodes]
    table = Table(show_header=False, box=box.SIMPLE)
    rows = {
        "robot": spec.robot,
        "files": str(len({episode.path for episode in episodes})),
        "episodes": f"{len(episodes)}{_mask_counts(episodes)}",
        "steps": f"{sum(lengths)} ({min(lengths)} to {max(lengths)} an episode, "
        f"median {np.median(lengths):g})",
        "rate": rate_text(episodes),
        "cameras": _lines(f"{c.name} {c.width}x{c.height}" for c in spec.cameras),
        "success": _success_text(episodes),
        "note": episodes.note,
    }
    for name, text in rows.items():
        if text:
            table.add_row(f"[bold]{name}[/bold]", escape(text))
    return table


def member_table(episodes: EpisodeDataset) -> Table:
    """Return every member of `obs` with what is done with it, and why."""
    table = TitledTable(TITLE, box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in member_rows(episodes.members):
        table.add_row(escape(name), escape(text))
    return table


def vector_table(episodes: EpisodeDataset) -> Table:
    """Return the range and mean of each dimension, with its unit and limits."""
    statistics = dataset_statistics(episodes)
    table = TitledTable("Actions and proprioception, by dimension", box=box.SIMPLE_HEAD)
    table.add_column("dimension", no_wrap=True)
    for name in ("min", "mean", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limits", no_wrap=True)
    labels, limits = _action_labels(episodes.spec)
    _add_rows(table, labels, limits, statistics.actions)
    for vector in episodes.spec.proprioception:
        table.add_section()
        _add_rows(table, vector.labels, [""] * vector.size, statistics.proprioception[vector.name])
    return table


def instruction_table(episodes: EpisodeDataset) -> Table:
    """Return the distinct instructions with their task and counts, the most frequent first."""
    counts = Counter((episode.instruction, episode.task) for episode in episodes)
    succeeded = Counter(
        (episode.instruction, episode.task) for episode in episodes if episode.success
    )
    told = any(episode.success is not None for episode in episodes)
    table = TitledTable("Instructions", box=box.SIMPLE_HEAD)
    table.add_column("episodes", justify="right")
    table.add_column("successes", justify="right")
    table.add_column("task")
    table.add_column("instruction")
    for (instruction, task), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        successes = str(succeeded[instruction, task]) if told else "-"
        table.add_row(str(count), successes, escape(task) or "-", escape(instruction) or "(none)")
    return table


def rate_text(episodes: EpisodeDataset) -> str:
    """Return the control rate that the timestamps give, and the one that the spec says."""
    steps = [np.diff(times) for episode in episodes if (times := episode.timestamps) is not None]
    intervals: npt.NDArray[np.float64] = np.concatenate(steps) if steps else np.empty(0)
    rate = episodes.spec.rate_hz
    if not intervals.size:
        return f"not measured: no timestamps ({rate:g} Hz assumed)"
    middle = float(np.median(intervals))
    if not middle > 1 / RATES_HZ[1]:
        return f"not measured: timestamps {middle:g} s apart tell no rate ({rate:g} Hz assumed)"
    spread = f"ticks {intervals.min() * 1e3:.0f} to {intervals.max() * 1e3:.0f} ms apart"
    return f"{1 / middle:.2f} Hz measured ({spread}); the spec says {rate:g} Hz"


def _add_rows(
    table: Table, labels: Iterable[str], limits: Iterable[str], found: VectorStatistics
) -> None:
    columns = (found.min, found.mean, found.max)
    for label, limit, *values in zip(labels, limits, *columns, strict=True):
        table.add_row(escape(label), *(f"{value:.3g}" for value in values), limit)


def _action_labels(spec: PolicySpec) -> tuple[list[str], list[str]]:
    labels, limits = [], []
    for part in spec.actions:
        unit = f" ({part.unit})" if part.unit not in ("", "unknown") else ""
        bounded = np.isfinite([part.low, part.high]).all()
        limit = (
            limits_text(part)
            if part.kind == "binary"
            else f"{part.low:g} to {part.high:g}"
            if bounded
            else ""
        )
        for i in range(part.size):
            labels.append(f"{part.name}{unit}" if part.size == 1 else f"{part.name}[{i}]{unit}")
            limits.append(limit)
    return labels, limits


def _mask_counts(episodes: EpisodeDataset) -> str:
    counts = [
        f"{key} {sum(key in episode.masks for episode in episodes)}" for key in episodes.mask_keys
    ]
    return f" ({', '.join(counts)})" if counts else ""


def _success_text(episodes: EpisodeDataset) -> str:
    outcomes = [episode.success for episode in episodes if episode.success is not None]
    if not outcomes:
        return "not recorded"
    unknown = len(episodes) - len(outcomes)
    return f"{sum(outcomes)} of {len(outcomes)}" + (f" ({unknown} not recorded)" if unknown else "")


def _lines(items: Iterable[str]) -> str:
    return "\n".join(items) or "none"
