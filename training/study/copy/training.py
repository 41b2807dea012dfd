"""One training on the copying task, until held-out sequences are copied without a fault or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.fit import Batch, fit, repeated, within
from ttm.training.common.sequence_model import SequenceModel, ticks_seen
from ttm.training.study.copy.task import (
    NUM_SYMBOLS,
    copy_accuracy,
    copy_loss,
    fresh_batches,
    sequences,
)

HELD_OUT = 200
HELD_OUT_SEED = 2**40
"""Of the sequences that are asked for at the end, the same for all trainings."""
STEPS_BETWEEN = 50
"""Steps from one look at the held-out sequences to the next."""


@dataclass(frozen=True)
class CopyOptions:
    """What is the same for all trainings of a study."""

    width: int
    batch_size: int
    learning_rate: float
    seconds: float
    """After which a training ends, whatever it has learned; evaluations included."""
    unique: int | None
    """Sequences to train on, again and again; None for fresh ones without end."""


@dataclass(frozen=True)
class CopyResult:
    """Where a training stands, or ended."""

    core: str
    parameters: int
    blanks: int
    """T."""
    seed: int
    ticks_seen: int
    """How many ticks back the last output depends on, before training."""
    samples: int
    """Sequences presented so far, repeated ones counted each time."""
    loss: float
    digits: float
    """Share of the held-out sequences' digits that are right."""
    sequences: float
    """Share of the held-out sequences that are right from the first digit to the last."""
    seconds: float
    """With evaluations."""

    @property
    def perfect(self) -> bool:
        return self.sequences == 1


def train_copy(
    core: str,
    config: CoreConfig,
    blanks: int,
    seed: int,
    options: CopyOptions,
    report: Callable[[CopyResult], None],
) -> CopyResult:
    """Trains `config`, called `core`, at T = `blanks`; `report` is given every evaluation."""
    torch.manual_seed(seed)
    model = SequenceModel(config, NUM_SYMBOLS, NUM_SYMBOLS, options.width)
    held_out = sequences(HELD_OUT, blanks, torch.Generator().manual_seed(HELD_OUT_SEED))
    seen = ticks_seen(model, held_out[0][:1])
    begun = time.perf_counter()
    batches = within(_batches(blanks, seed, options), options.seconds)
    for progress in fit(
        model, batches, copy_loss, learning_rate=options.learning_rate, report_every=STEPS_BETWEEN
    ):
        digits, whole = copy_accuracy(model, *held_out, options.batch_size)
        result = CopyResult(
            core=core,
            parameters=model.num_parameters,
            blanks=blanks,
            seed=seed,
            ticks_seen=seen,
            samples=progress.steps * options.batch_size,
            loss=progress.loss,
            digits=digits,
            sequences=whole,
            seconds=time.perf_counter() - begun,
        )
        report(result)
        if result.perfect:
            break
    return result


def _batches(blanks: int, seed: int, options: CopyOptions) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    if options.unique is None:
        return fresh_batches(options.batch_size, blanks, generator)
    return repeated(sequences(options.unique, blanks, generator), options.batch_size, generator)
