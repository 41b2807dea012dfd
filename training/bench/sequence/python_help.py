"""The text of Python's own help as bytes to predict: some 460 KB of English that every Python has."""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

SYMBOLS = 256
"""Number of values of a byte."""
HELD_OUT = 0.1
"""Portion of the text, at its end, that no training sees."""


def help_text() -> Tensor:
    """Return the topics in alphabetical order, (bytes,) int64."""
    joined = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.from_numpy(np.frombuffer(joined.encode(), np.uint8).astype(np.int64))


def split_text(text: Tensor) -> tuple[Tensor, Tensor]:
    """Split `text`, (bytes,), into the part for training and the part that is held out."""
    first = len(text) - round(len(text) * HELD_OUT)
    return text[:first], text[first:]


def random_windows(
    text: Tensor, ticks: int, batch: int, count: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `count` batches of windows at random places of `text`.

    Each batch holds the bytes and their successors, (B, T) each.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        first = torch.randint(len(text) - ticks, (batch, 1), generator=generator)
        yield _with_next(text, first, ticks)


def all_windows(text: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    """Return adjacent windows of `text`: the bytes and their successors, (windows, T) each.

    The end of the text is left out where it fills no window.
    """
    return _with_next(text, torch.arange(0, len(text) - ticks, ticks)[:, None], ticks)


def _with_next(text: Tensor, first: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    place = first + torch.arange(ticks)
    return text[place], text[place + 1]
