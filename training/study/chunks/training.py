"""One training on the task of chunks, for a number of steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.fit import fit
from ttm.training.common.sequence_model import SequenceModel
from ttm.training.study.chunks.task import (
    chunk_loss,
    fresh_batches,
    num_symbols,
    right_by_place,
    sequences,
)

HELD_OUT = 1000
HELD_OUT_SEED = 2**40
"""Of the sequences that are asked for at the end, the same for all trainings of one vocabulary."""


@dataclass(frozen=True)
class ChunkOptions:
    """What is the same for all trainings of a study."""

    steps: int
    width: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class ChunkResult:
    """What a training came to on held-out sequences."""

    name: str
    """Core, or hierarchy."""
    letters: int
    """V."""
    seed: int
    parameters: int
    accuracy: float
    """Share of the symbols that were told."""
    deviation: float
    """Standard error of that, from sequence to sequence."""
    by_place: tuple[float, ...]
    """The same for a chunk's first, second and third symbol."""
    limit: float | None
    """What the accuracy can be at most, but for luck; None where that is not worked out."""
    seconds: float
    """Of training."""


def train_chunks(
    name: str,
    config: CoreConfig,
    letters: int,
    limit: float | None,
    seed: int,
    options: ChunkOptions,
) -> ChunkResult:
    """Trains `config`, called `name`, on V = `letters`."""
    torch.manual_seed(seed)
    model = SequenceModel(config, num_symbols(letters), num_symbols(letters), options.width)
    begun, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    batches = islice(fresh_batches(options.batch_size, letters, generator), options.steps)
    for _ in fit(model, batches, chunk_loss, learning_rate=options.learning_rate):
        pass
    seconds = time.perf_counter() - begun
    held_out = sequences(HELD_OUT, letters, torch.Generator().manual_seed(HELD_OUT_SEED))
    right = right_by_place(model, *held_out)
    of_sequence = right.mean(dim=1)
    return ChunkResult(
        name=name,
        letters=letters,
        seed=seed,
        parameters=model.num_parameters,
        accuracy=of_sequence.mean().item(),
        deviation=of_sequence.std().item() / HELD_OUT**0.5,
        by_place=tuple(right.mean(dim=0).tolist()),
        limit=limit,
        seconds=seconds,
    )
