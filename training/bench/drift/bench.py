"""Measure the drift of every checkpoint that the options name; print tables, write a chart and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.window_dataset import WindowDataset, resized_spec
from ttm.policy.errors import UserError
from ttm.policy.files import write_json
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.sim.workers.cores import usable_cores
from ttm.training.bench.drift.chains import lay_chains
from ttm.training.bench.drift.chart import draw_drift
from ttm.training.bench.drift.measure import measure
from ttm.training.bench.drift.options import DriftOptions
from ttm.training.bench.drift.summary import DriftSummary, summarize
from ttm.training.bench.drift.table import drift_notes, drift_table
from ttm.training.bench.report import Report
from ttm.training.common.recorded.episodes import open_all, split


def run_bench(options: DriftOptions) -> None:
    """Measure the checkpoints one after the other; write drift.png and drift.json."""
    torch.set_num_threads(options.threads or usable_cores())
    report = Report()
    summaries = {}
    for name, path in named_checkpoints(options.checkpoint).items():
        summaries[name] = measure_checkpoint(path, options)
        report.table(drift_table(name, summaries[name]), drift_notes(name, summaries[name]))
    chart, figures = options.out / "drift.png", options.out / "drift.json"
    options.out.mkdir(parents=True, exist_ok=True)
    draw_drift(summaries, chart)
    write_json(figures, _to_json(options, summaries))
    report.text(f"chart: {chart}; figures: {figures}")


def named_checkpoints(checkpoints: tuple[Path, ...]) -> dict[str, Path]:
    """Return short name -> file. Trainings give their files equal names, so names include the folder."""
    names = [c.stem if str(c) == SHIPPED else f"{c.parent.name}/{c.stem}" for c in checkpoints]
    if len(set(names)) < len(names):
        names = [str(checkpoint) for checkpoint in checkpoints]
    return {name: checkpoint_path(c) for name, c in zip(names, checkpoints, strict=True)}


def measure_checkpoint(path: Path, options: DriftOptions) -> DriftSummary:
    """Load one checkpoint and run it over the chains. Raises `UserError` if the data does not fit it."""
    policy, _ = load_checkpoint(path)
    opened = open_all(options.data, like=policy.spec)
    sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
    episodes = split(opened, options.filter)
    policy.spec.require_compatible(
        resized_spec(episodes.spec, sizes), ours=str(path), theirs=episodes.source
    )
    if not len(episodes):
        raise UserError(
            f"{episodes.source}: no episode is in mask '{options.filter}'; give another --filter"
        )
    longest = max(episode.num_samples for episode in episodes)
    windows = WindowDataset(episodes, longest, pad="none", resize_to=sizes)
    statistics = dataset_statistics(episode for dataset in opened for episode in dataset).actions
    chains = lay_chains(windows.episode_lengths, options.chains, options.ticks, options.seed)
    return summarize(measure(policy, windows, statistics, chains), options.bin, options.seed)


def _to_json(options: DriftOptions, summaries: Mapping[str, DriftSummary]) -> dict[str, object]:
    """Return the figures of all checkpoints, and the options that they depend on, as plain data."""
    return {
        "options": {
            "data": list(options.data),
            "ticks": options.ticks,
            "chains": options.chains,
            "seed": options.seed,
        },
        "checkpoints": {name: summary.to_json() for name, summary in summaries.items()},
    }
