"""Run `ttm bench step`: make the trainings, time their steps in turns, and report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from string import ascii_uppercase

from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import checkpoint_path
from ttm.training.bench.report import Report
from ttm.training.bench.step.contenders import equal_lstm, parsed
from ttm.training.bench.step.material import record_episodes, trainer_of
from ttm.training.bench.step.measure import StepRow, measure_steps
from ttm.training.bench.step.options import StepOptions
from ttm.training.bench.step.tables import NOTES, part_table, step_table
from ttm.training.cloning.frozen_vision.feature_cache import FeatureCache
from ttm.training.cloning.loop.trainer import Trainer
from ttm.training.common.allocator import keep_freed_memory


def run_bench(options: StepOptions) -> None:
    """Time the steps of all cores and of their LSTMs, print tables, and write the figures."""
    keep_freed_memory()
    report = Report(options.json)
    policy = load_checkpoint(checkpoint_path(options.init))[0]
    lstm_of = {core: equal_lstm(core, policy) for core in parsed(options.cores, policy)}
    if options.trained_vision:
        first, lstm = next(iter(lstm_of.items()))
        lstm_of[replace(first, trains_vision=True)] = lstm
    with _data(options, policy) as data:
        cores = dict.fromkeys([*lstm_of, *lstm_of.values()])
        features = FeatureCache(policy, policy.spec.cameras)
        trainers = {core: trainer_of(core, options, data, features) for core in cores}
        letters = dict(zip((core.label for core in cores), ascii_uppercase, strict=False))
        report.text(_introduction(next(iter(trainers.values())), options, letters))
        rows: list[StepRow] = []
        for threads in options.threads:
            rows += (found := measure_steps(trainers, lstm_of, threads, options.rounds))
            report.table(step_table(found, letters))
            report.table(part_table(found, letters))
    report.text(NOTES)
    report.figures["steps"] = [asdict(row) for row in rows]
    report.write()


@contextmanager
def _data(options: StepOptions, policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the episodes, which are made up if the user names none."""
    if options.data:
        yield options.data
        return
    with tempfile.TemporaryDirectory() as folder:
        record_episodes(Path(folder), policy, options)
        yield (folder,)


def _introduction(trainer: Trainer, options: StepOptions, letters: Mapping[str, str]) -> str:
    """Return in words what a step is, and which letter stands for which core."""
    lengths, features = trainer.source.windows.episode_lengths, trainer.source.features
    assert features is not None  # vision is frozen
    distinct = max(len(rows.unique()) for rows in features.rows.values())
    cores = "\n".join(f"  {letter}  {core}" for core, letter in letters.items())
    return f"""\
{len(lengths)} episodes of {min(lengths)} to {max(lengths)} ticks, whole, in batches of \
{options.batch_size}; of {sum(lengths)} frames a camera
{distinct} are distinct. Vision is frozen; weight of the recall loss {options.recall_weight:g}.

{cores}
"""
