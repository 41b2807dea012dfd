"""`ttm data show`: what is in a data set, as tables and as a contact sheet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.show.contact_sheet import contact_sheet, evenly_chosen
from ttm.datasets.statistics import VectorStatistics, dataset_statistics
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class DataShowCommand:
    """Show what is in a data set: episodes, steps, rate, cameras, ranges, instructions, success.

    Also writes a contact sheet as PNG for each camera: rows are episodes, columns evenly spaced ticks.
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    mask: str | None = None
    """Only the episodes of this mask, such as train or valid."""

    sheet: Path | None = Path("contact_sheet.png")
    """Where the contact sheet goes; with several cameras, one file each, named after it. None writes none."""

    rows: int = 12
    """Episodes on the contact sheet, evenly spread over the data set."""

    columns: int = 8
    """Ticks of each episode on the contact sheet, from its first to its last."""

    def run(self) -> int:
        if self.rows < 1 or self.columns < 1:
            raise UserError(
                f"rows is {self.rows} and columns {self.columns}; both must be at least 1"
            )
        console = Console()
        episodes = open_dataset(self.path)
        episodes = episodes.filter(self.mask) if self.mask else episodes
        if not len(episodes):
            raise UserError(
                f"{self.path}: no episode is in mask '{self.mask}'; leave --mask out to see all"
            )
        for table in (
            overview_table(episodes),
            vector_table(episodes),
            instruction_table(episodes),
        ):
            console.print(table)
        for path in write_contact_sheets(episodes, self.sheet, self.rows, self.columns):
            console.print(f"contact sheet: {path}", soft_wrap=True, highlight=False)
        return 0


def overview_table(episodes: EpisodeDataset) -> Table:
    """Episodes, steps, rate, cameras, proprioception, actions, success."""
    spec = episodes.spec
    lengths = [episode.num_samples for episode in episodes]
    table = Table(title=episodes.source, show_header=False, title_justify="left", box=box.SIMPLE)
    rows = {
        "robot": spec.robot,
        "files": str(len({episode.path for episode in episodes})),
        "episodes": f"{len(episodes)}{_mask_counts(episodes)}",
        "steps": f"{sum(lengths)} ({min(lengths)} to {max(lengths)} an episode, median {np.median(lengths):g})",
        "rate": rate_text(episodes),
        "cameras": _lines(f"{c.name} {c.width}x{c.height}" for c in spec.cameras),
        "success": _success_text(episodes),
        "note": episodes.note,
    }
    for name, text in rows.items():
        if text:
            table.add_row(f"[bold]{name}[/bold]", text)
    return table


def vector_table(episodes: EpisodeDataset) -> Table:
    """The spread of each dimension of the actions and of the proprioception, with units and limits."""
    statistics = dataset_statistics(episodes)
    table = Table(
        title="Actions and proprioception, by dimension", title_justify="left", box=box.SIMPLE_HEAD
    )
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
    """Every distinct instruction with its task, count and successes, the most frequent first."""
    counts = Counter((episode.instruction, episode.task) for episode in episodes)
    succeeded = Counter(
        (episode.instruction, episode.task) for episode in episodes if episode.success
    )
    told = any(episode.success is not None for episode in episodes)
    table = Table(title="Instructions", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("episodes", justify="right")
    table.add_column("successes", justify="right")
    table.add_column("task")
    table.add_column("instruction")
    for (instruction, task), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        successes = str(succeeded[instruction, task]) if told else "-"
        table.add_row(str(count), successes, task or "-", instruction or "(none)")
    return table


def rate_text(episodes: EpisodeDataset) -> str:
    """The control rate as measured from the timestamps, beside the one the spec says."""
    steps = [np.diff(times) for episode in episodes if (times := episode.timestamps) is not None]
    intervals: npt.NDArray[np.float64] = np.concatenate(steps) if steps else np.empty(0)
    rate = episodes.spec.rate_hz
    if not intervals.size or not np.median(intervals) > 0:
        return f"not measured: no timestamps ({rate:g} Hz assumed)"
    spread = f"ticks {intervals.min() * 1e3:.0f} to {intervals.max() * 1e3:.0f} ms apart"
    return f"{1 / np.median(intervals):.2f} Hz measured ({spread}); the spec says {rate:g} Hz"


def write_contact_sheets(
    episodes: EpisodeDataset, path: Path | None, rows: int, columns: int
) -> list[Path]:
    """One PNG for each camera; returns where they lie."""
    if path is None:
        return []
    path = path if path.suffix else path.with_suffix(".png")
    written = []
    for camera in episodes.spec.cameras:
        place = (
            path
            if len(episodes.spec.cameras) == 1
            else path.with_stem(f"{path.stem}_{camera.name}")
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(evenly_chosen(episodes, rows), camera, columns).save(place)
        written.append(place)
    return written


def _add_rows(
    table: Table, labels: Iterable[str], limits: Iterable[str], found: VectorStatistics
) -> None:
    columns = (found.min, found.mean, found.max)
    for label, limit, *values in zip(labels, limits, *columns, strict=True):
        table.add_row(label, *(f"{value:.3g}" for value in values), limit)


def _action_labels(spec: PolicySpec) -> tuple[list[str], list[str]]:
    labels, limits = [], []
    for part in spec.actions:
        unit = f" ({part.unit})" if part.unit not in ("", "unknown") else ""
        bounded = np.isfinite([part.low, part.high]).all()
        limit = (
            "0 or 1"
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
