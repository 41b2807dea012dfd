"""The copying task (Hochreiter & Schmidhuber 1997) as in the TLB paper (Didolkar et al. 2022).

A sequence has T + 21 symbols: ten digits from 1 to 8, T zeros, a 9, and ten zeros. At the last ten
symbols the model has to repeat the digits, so it must keep each of them for T + 11 ticks. By chance
1 of 8 digits is right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ttm.training.sequence_model import SequenceModel
from ttm.training.study.common import predicted

NUM_DIGITS = 10  # to copy
BLANK, LARGEST, GO = 0, 8, 9  # an empty tick, the largest digit, the signal to repeat the digits
NUM_SYMBOLS = 10
HELD_OUT = 200  # sequences of each length


def sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences with T = `blanks`.

    Returns the symbols (B, T + 21) and the digits to repeat (B, 10), both int64.
    """
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    symbols = digits.new_full((count, 2 * NUM_DIGITS + blanks + 1), BLANK)
    symbols[:, :NUM_DIGITS] = digits
    symbols[:, NUM_DIGITS + blanks] = GO
    return symbols, digits


def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Return the portions of digits and of whole sequences that the model repeats correctly."""
    right = predicted(model, symbols, batch_size)[:, -NUM_DIGITS:] == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()
