"""One training on the copying task, until everything is copied correctly or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.fit import fit, repeated, within
from ttm.training.common.sequence_model import SequenceModel, ticks_seen
from ttm.training.study.copy.options import CopyOptions
from ttm.training.study.copy.task import (
    NUM_SYMBOLS,
    copy_accuracy,
    copy_loss,
    fresh_batches,
    sequences,
)

HELD_OUT = 200
"""Number of held-out sequences of each length."""
HELD_OUT_SEED = 2**40
"""Seed of the held-out sequences, which are the same for all trainings of one length."""
EVALUATE_EVERY = 50
"""Steps between two evaluations on the held-out sequences."""


@dataclass(frozen=True)
class CopyResult:
    """The state of one training after an evaluation; the last one is the result."""

    core: str
    parameters: int
    blanks: int
    """T."""
    seed: int
    ticks_seen: int
    """How many ticks back the last output depends on, before training."""
    samples: int
    """Sequences presented so far; repeated ones count each time."""
    loss: float
    """Loss of the last batch."""
    digits: float
    """Portion of the held-out sequences' digits that are right."""
    sequences: float
    """Portion of the held-out sequences that are right from the first digit to the last."""
    seconds: float
    """Time since the training began, evaluations included."""

    @property
    def perfect(self) -> bool:
        """Whether all held-out sequences are right."""
        return self.sequences == 1


def train_copy(
    core: str,
    config: CoreConfig,
    blanks: int,
    seed: int,
    options: CopyOptions,
    report: Callable[[CopyResult], None],
) -> CopyResult:
    """Train `config`, called `core`, at T = `blanks`, and return the last evaluation.

    `report` is called with every evaluation.
    """
    torch.manual_seed(seed)
    model = SequenceModel(config, NUM_SYMBOLS, NUM_SYMBOLS, options.width)
    held_out = [
        sequences(HELD_OUT, length, torch.Generator().manual_seed(HELD_OUT_SEED))
        for length in held_out_lengths(blanks, options.shortest)
    ]
    seen = ticks_seen(model, held_out[-1][0][:1])
    begun = time.perf_counter()
    batches = within(_batches(blanks, seed, options), options.seconds)
    for progress in fit(
        model, batches, copy_loss, learning_rate=options.learning_rate, report_every=EVALUATE_EVERY
    ):
        right = [copy_accuracy(model, *part, options.batch_size) for part in held_out]
        digits, whole = (sum(portions) / len(right) for portions in zip(*right, strict=True))
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


def held_out_lengths(blanks: int, shortest: int | None) -> list[int]:
    """Return T alone, or the shortest T of training, the mean of the two (rounded up), and T."""
    if shortest is None:
        return [blanks]
    return sorted({shortest, (shortest + blanks + 1) // 2, blanks})


def _batches(blanks: int, seed: int, options: CopyOptions) -> Iterator[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    if options.unique is None:
        return fresh_batches(options.batch_size, blanks, generator, options.shortest)
    return repeated(sequences(options.unique, blanks, generator), options.batch_size, generator)
