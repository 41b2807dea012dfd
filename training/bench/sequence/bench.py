"""Run the parts of `ttm bench sequence` that the options name, and report their figures."""

from __future__ import annotations

from dataclasses import asdict

import torch

from ttm.policy.errors import UserError
from ttm.policy.run.threads import cpu_threads
from ttm.training.bench.report import Report
from ttm.training.bench.sequence.cost import CostSizes, measure_cost
from ttm.training.bench.sequence.models import Choices, contenders
from ttm.training.bench.sequence.options import SequenceOptions
from ttm.training.bench.sequence.quality import Training, measure_quality, single_byte_bits
from ttm.training.bench.sequence.tables import (
    cost_notes,
    cost_table,
    quality_notes,
    quality_table,
)


def run_bench(options: SequenceOptions) -> None:
    """Measure cost and quality, print a table for each, and write the figures.

    Raises `UserError` if the device is missing.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device is cuda, but PyTorch finds no GPU here; leave it out to run on the CPU"
        )
    report = Report(options.json, options={**asdict(options), "json": None})
    with cpu_threads(options.threads):
        if "cost" in options.parts:
            _run_cost(options, report)
        if "quality" in options.parts:
            _run_quality(options, report)
    report.write()


def _run_cost(options: SequenceOptions, report: Report) -> None:
    sizes = CostSizes(
        width=options.width,
        ticks=options.ticks,
        batch=options.batch,
        rounds=options.rounds,
        tick_blocks=options.tick_blocks,
        device=options.device,
    )
    choices = _choices(options, options.chunk_sizes, options.hierarchies)
    rows = measure_cost(contenders(choices, sizes.width), sizes)
    report.table(cost_table(rows, sizes), cost_notes(rows[0], choices, sizes))
    report.figures["cost"] = [asdict(row) for row in rows]


def _run_quality(options: SequenceOptions, report: Report) -> None:
    sizes = CostSizes(
        width=options.text_width,
        ticks=options.text_ticks,
        batch=options.text_batch,
        rounds=options.rounds,
        tick_blocks=0,
        device=options.device,
    )
    training = Training(options.steps, options.learning_rate, options.seeds)
    choices = _choices(options, options.text_chunk_sizes, options.text_hierarchies)
    rows = measure_quality(contenders(choices, sizes.width), sizes, training)
    single = single_byte_bits(sizes.ticks)
    report.table(
        quality_table(rows, training), quality_notes(rows[0].cost, sizes, training, single)
    )
    report.figures["quality"] = {
        "single_byte_bits": single,
        "rows": [asdict(row) for row in rows],
    }


def _choices(
    options: SequenceOptions, chunk_sizes: tuple[int, ...], hierarchies: tuple[str, ...]
) -> Choices:
    return Choices(
        chunk_sizes=chunk_sizes,
        hierarchies=hierarchies,
        layers=options.layers,
        cross_every=options.cross_every,
        num_latents=options.num_latents,
        window=options.window,
    )
