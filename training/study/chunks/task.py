"""The task that shows what Hourglass's vanilla layers are for (Nawrot et al. 2021, appendix A.1).

Chunks L#L, L one of V letters at random, one after another; each symbol is to be told before it is seen. The first of a
chunk can but be guessed (1 / V), the second always is #, the third repeats the first: (2 + 1 / V) / 3 at best. Where
ticks are shortened in groups of three and no layer runs at full length, the newest group ends with the chunk before, so
that the third symbol can but be guessed too: (1 + 2 / V) / 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.training.common.fit import Batch
from ttm.training.common.sequence_model import SequenceModel

CHUNK = 3
NUM_CHUNKS = 6
"""Of a sequence, so that most have some before them."""


def num_symbols(letters: int) -> int:
    """V letters, # and the symbol before the first, in this order."""
    return letters + 2


def sequences(count: int, letters: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` (B) sequences with V = `letters` -> what is seen and what is to be told at each tick, (B, T) int64.

    What is seen is what was to be told one tick before.
    """
    letter = torch.randint(letters, (count, NUM_CHUNKS), generator=generator)
    mark = torch.full_like(letter, letters)
    symbols = torch.stack([letter, mark, letter], dim=2).flatten(1)  # (B, T)
    return F.pad(symbols[:, :-1], (1, 0), value=letters + 1), symbols


def fresh_batches(batch_size: int, letters: int, generator: torch.Generator) -> Iterator[Batch]:
    """New sequences for ever."""
    while True:
        yield sequences(batch_size, letters, generator)


def chunk_loss(model: SequenceModel, seen: Tensor, symbols: Tensor) -> Tensor:
    """Cross-entropy at every tick."""
    return F.cross_entropy(model(seen).flatten(0, 1), symbols.flatten())


@torch.no_grad()
def right_by_place(model: SequenceModel, seen: Tensor, symbols: Tensor) -> Tensor:
    """(B, 3) float64: the share of a sequence's chunks in which the first, second and third symbol were told."""
    model.eval()
    right = torch.cat([model(part).argmax(dim=2) for part in seen.split(100)]) == symbols
    return right.unflatten(1, (NUM_CHUNKS, CHUNK)).double().mean(dim=1)


def best_with_two_ticks(letters: int) -> float:
    """For whatever remembers the last two symbols."""
    return (2 + 1 / letters) / 3


def best_without_vanilla_layers(letters: int) -> float:
    """Where only groups of three that end with a chunk are remembered, and which tick of three it is, is known."""
    return (1 + 2 / letters) / 3


def best_with_one_tick(letters: int) -> float:
    """For what sees the newest symbol alone, or groups of three and not which tick of them it is.

    A letter then may be a chunk's first, which # follows, or its last: to say # after every letter is best, which is
    wrong at the first symbol of every chunk but the sequence's first.
    """
    return (1 + (1 + 1 / NUM_CHUNKS) / letters) / 3
