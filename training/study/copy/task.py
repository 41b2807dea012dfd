"""The copying task (Hochreiter & Schmidhuber 1997), as the Temporal Latent Bottleneck paper poses it.

Ten digits of 1 to 8, T zeros, a 9, ten zeros: T + 21 symbols. At the last ten the digits are to be said again, so each
has to be kept for T + 11 ticks. What was not kept can be guessed: 1 of 8 digits is right by chance.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.training.common.fit import Batch
from ttm.training.common.sequence_model import SequenceModel

NUM_DIGITS = 10
"""To be kept."""
BLANK, LARGEST, GO = 0, 8, 9
NUM_SYMBOLS = 10
"""Zero, the eight digits, and the 9 that says when."""


def lag(blanks: int) -> int:
    """Ticks from a digit to where it is to be said, for T = `blanks`."""
    return blanks + NUM_DIGITS + 1


def sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` (B) sequences with T = `blanks` -> symbols (B, T + 21) and the digits to be said (B, 10), int64."""
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    waiting, saying = (
        digits.new_full((count, blanks), BLANK),
        digits.new_full((count, NUM_DIGITS), BLANK),
    )
    go = digits.new_full((count, 1), GO)
    return torch.cat([digits, waiting, go, saying], dim=1), digits


def fresh_batches(batch_size: int, blanks: int, generator: torch.Generator) -> Iterator[Batch]:
    """New sequences for ever."""
    while True:
        yield sequences(batch_size, blanks, generator)


def copy_loss(model: SequenceModel, symbols: Tensor, digits: Tensor) -> Tensor:
    """Cross-entropy of the last ten outputs."""
    return F.cross_entropy(model(symbols)[:, -NUM_DIGITS:].flatten(0, 1), digits.flatten())


@torch.no_grad()
def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Shares of digits and of whole sequences that are right."""
    model.eval()
    said = torch.cat(
        [model(part)[:, -NUM_DIGITS:].argmax(dim=2) for part in symbols.split(batch_size)]
    )
    right = said == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()
