"""The task that shows why Hourglass needs vanilla layers (Nawrot et al. 2021, appendix A.1).

A sequence consists of chunks L#L, where L is one of V letters, drawn for each chunk. The model
predicts each symbol from those before it. The first symbol of a chunk can only be guessed (1 / V),
the second is always #, and the third repeats the first: at best (2 + 1 / V) / 3 of the symbols are
right. If ticks are shortened in groups of three and no layer runs at full length, then the newest
group ends with the previous chunk, and the third symbol can only be guessed,
too: (1 + 2 / V) / 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.training.common.sequence_model import SequenceModel

CHUNK = 3
"""Symbols in a chunk."""
NUM_CHUNKS = 6
"""Chunks in a sequence; most of them have some before them."""
EVALUATION_BATCH = 100
"""Sequences that are evaluated at once."""


def num_symbols(letters: int) -> int:
    """Return the number of symbols: V letters, #, and the symbol before the first."""
    return letters + 2


def sequences(count: int, letters: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences with V = `letters`.

    Returns the inputs and the targets of each tick, both (B, T) int64.

    The input of a tick is the target of the tick before.
    """
    letter = torch.randint(letters, (count, NUM_CHUNKS), generator=generator)
    mark = torch.full_like(letter, letters)
    targets = torch.stack([letter, mark, letter], dim=2).flatten(1)  # (B, T)
    return F.pad(targets[:, :-1], (1, 0), value=letters + 1), targets


def fresh_batches(
    batch_size: int, letters: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of new sequences without end; see `sequences`."""
    while True:
        yield sequences(batch_size, letters, generator)


def chunk_loss(model: SequenceModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all ticks, a scalar."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def right_by_place(model: SequenceModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the accuracy on the first, second and third symbol of the chunks of each sequence.

    The shape is (B, 3), the type float64.
    """
    model.eval()
    predicted = torch.cat([model(part).argmax(dim=2) for part in inputs.split(EVALUATION_BATCH)])
    right = predicted == targets
    return right.unflatten(1, (NUM_CHUNKS, CHUNK)).double().mean(dim=1)


def best_with_two_ticks(letters: int) -> float:
    """Return the highest accuracy of a model that remembers the last two symbols."""
    return (2 + 1 / letters) / 3


def best_without_vanilla_layers(letters: int) -> float:
    """Return the highest accuracy with a memory of whole chunks and knowledge of the place.

    The place is which symbol of a chunk comes next.
    """
    return (1 + 2 / letters) / 3


def best_with_one_tick(letters: int) -> float:
    """Return the highest accuracy with the newest symbol, or with whole chunks but not the place.

    A letter then may be the first of a chunk, which # follows, or the last. The best prediction
    after every letter is #, which is wrong for the first symbol of every chunk except that of the
    sequence's first chunk.
    """
    return (1 + (1 + 1 / NUM_CHUNKS) / letters) / 3
