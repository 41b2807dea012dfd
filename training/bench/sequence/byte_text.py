"""A text that every Python brings along: the topics of its help, some 460 KB of English, as bytes to predict."""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

SYMBOLS = 256
"""Values of a byte."""
HELD_OUT = 0.1
"""The last part of the text, which no training sees."""


def help_text() -> Tensor:
    """(bytes,) int64, the topics in alphabetical order."""
    joined = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.from_numpy(np.frombuffer(joined.encode(), np.uint8).astype(np.int64))


def split_text(text: Tensor) -> tuple[Tensor, Tensor]:
    """text: (bytes,) -> what to train on, what is held out."""
    first = len(text) - round(len(text) * HELD_OUT)
    return text[:first], text[first:]


def random_windows(
    text: Tensor, ticks: int, batch: int, count: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches of symbols and of those that follow them, (B, T) each, from anywhere in `text`."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        first = torch.randint(len(text) - ticks, (batch, 1), generator=generator)
        yield _with_next(text, first, ticks)


def all_windows(text: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    """Symbols and those that follow them, (windows, T) each, side by side; what is left at the end is left out."""
    return _with_next(text, torch.arange(0, len(text) - ticks, ticks)[:, None], ticks)


def _with_next(text: Tensor, first: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    place = first + torch.arange(ticks)
    return text[place], text[place + 1]
