"""The copying task (Hochreiter & Schmidhuber 1997) as in the TLB paper (Didolkar et al. 2022).

A sequence has T + 21 symbols: ten digits from 1 to 8, T zeros, a 9, and ten zeros. At the last ten
symbols the model has to repeat the digits, so it must keep each of them for T + 11 ticks. By chance
1 of 8 digits is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.training.common.sequence_model import SequenceModel

NUM_DIGITS = 10
"""Number of digits to copy."""
BLANK, LARGEST, GO = 0, 8, 9
"""The symbol of an empty tick, the largest digit, and the signal to repeat the digits."""
NUM_SYMBOLS = 10
"""Zero, the eight digits, and the signal."""


def lag(blanks: int) -> int:
    """Return the number of ticks from a digit to its repetition, for T = `blanks`."""
    return blanks + NUM_DIGITS + 1


def sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences with T = `blanks`.

    Returns the symbols (B, T + 21) and the digits to repeat (B, 10), both int64.
    """
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    waiting = digits.new_full((count, blanks), BLANK)
    go = digits.new_full((count, 1), GO)
    repeating = digits.new_full((count, NUM_DIGITS), BLANK)
    return torch.cat([digits, waiting, go, repeating], dim=1), digits


def fresh_batches(
    batch_size: int, blanks: int, generator: torch.Generator, shortest: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of new sequences without end; see `sequences`.

    shortest: each batch has its own T, drawn from `shortest` to `blanks`. None: T is `blanks`.
    """
    while True:
        drawn = blanks
        if shortest is not None:
            drawn = int(torch.randint(shortest, blanks + 1, (), generator=generator))
        yield sequences(batch_size, drawn, generator)


def copy_loss(model: SequenceModel, symbols: Tensor, digits: Tensor) -> Tensor:
    """Return the cross-entropy of the last ten outputs, a scalar."""
    return F.cross_entropy(model(symbols)[:, -NUM_DIGITS:].flatten(0, 1), digits.flatten())


@torch.no_grad()
def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Return the portions of digits and of whole sequences that the model repeats correctly."""
    model.eval()
    repeated = torch.cat(
        [model(part)[:, -NUM_DIGITS:].argmax(dim=2) for part in symbols.split(batch_size)]
    )
    right = repeated == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()
