"""One training on the task of chunks, for a number of steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

import torch

from ttm.training.common.fit import fit
from ttm.training.common.sequence_model import SequenceModel
from ttm.training.study.chunks.models import ChunkModel
from ttm.training.study.chunks.options import ChunksOptions
from ttm.training.study.chunks.task import (
    chunk_loss,
    fresh_batches,
    num_symbols,
    right_by_place,
    sequences,
)

HELD_OUT = 1000
"""Number of held-out sequences."""
HELD_OUT_SEED = 2**40
"""Seed of the held-out sequences, which are the same for all trainings of one vocabulary."""


@dataclass(frozen=True)
class ChunkResult:
    """The result of one training on held-out sequences."""

    name: str
    """Core, or core and hierarchy."""
    letters: int
    """V."""
    seed: int
    parameters: int
    accuracy: float
    """Portion of the symbols that are predicted."""
    deviation: float
    """Standard error of the accuracy, from sequence to sequence."""
    by_place: tuple[float, ...]
    """Accuracy on the first, second and third symbol of a chunk."""
    limit: float | None
    """Highest accuracy that the model can reach, except by luck; None where we do not know it."""
    seconds: float
    """Duration of the training."""


def train_chunks(model: ChunkModel, letters: int, seed: int, options: ChunksOptions) -> ChunkResult:
    """Train `model` on V = `letters` and evaluate it."""
    torch.manual_seed(seed)
    symbols = num_symbols(letters)
    network = SequenceModel(model.config, symbols, symbols, options.width)
    begun, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    batches = islice(fresh_batches(options.batch_size, letters, generator), options.steps)
    for _ in fit(network, batches, chunk_loss, learning_rate=options.learning_rate):
        pass
    seconds = time.perf_counter() - begun
    held_out = sequences(HELD_OUT, letters, torch.Generator().manual_seed(HELD_OUT_SEED))
    right = right_by_place(network, *held_out)
    by_sequence = right.mean(dim=1)
    return ChunkResult(
        name=model.name,
        letters=letters,
        seed=seed,
        parameters=network.num_parameters,
        accuracy=by_sequence.mean().item(),
        deviation=by_sequence.std().item() / HELD_OUT**0.5,
        by_place=tuple(right.mean(dim=0).tolist()),
        limit=model.limit(letters),
        seconds=seconds,
    )
