"""Cuts a training window into pieces that lie within one chunk of ticks and one episode, for each of the batch.

The elements of a batch begin their episodes, and so their chunks, at different ticks. Their first pieces run
together, then their second ones, and so on, whatever ticks these are: a window takes as many rounds as the
element with the most pieces has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Round:
    """One piece of each element; those that are shorter than the longest, or none at all, are filled up."""

    ticks: Tensor
    """(B, S) int64: which ticks of the window. Fillers come last and are any ticks."""
    count: Tensor
    """(B,) int64: how many of the S count."""
    begins_episode: Tensor
    """(B,) bool."""
    any_begins: bool
    """Whether that holds for any."""
    all_whole: bool
    """Whether every element has a whole chunk, from its first tick to its last."""


class WindowPieces:
    """The pieces of T ticks. Iterates over the rounds; `cut` gives what a window has for each, `in_order` brings their
    outputs back into the window's order. Where all elements are cut alike, as in most training, neither looks up
    anything by index, which with its gradient would cost a good part of a step.
    """

    def __init__(
        self, phase: Tensor, num_ticks: int, chunk_size: int, episode_start: Tensor | None = None
    ) -> None:
        """phase: (B,) int64, ticks of the current chunk before the window; episode_start: (B, T) bool."""
        tick = torch.arange(num_ticks, device=phase.device)
        if episode_start is None:
            episode_start = torch.zeros(
                len(phase), num_ticks, dtype=torch.bool, device=phase.device
            )
        began = torch.where(episode_start, tick, -1).cummax(dim=1).values
        age = torch.where(
            began >= 0, tick - began, phase[:, None] + tick
        )  # (B, T), of the chunk or the episode
        cut = (age % chunk_size == 0) | (tick == 0)
        self._number = cut.cumsum(dim=1) - 1  # (B, T), of the piece
        self._count = F.one_hot(self._number).sum(dim=1)  # (B, pieces)
        self._first = self._count.cumsum(dim=1) - self._count
        self._place = tick - self._first.gather(1, self._number)  # (B, T), within the piece
        self._lengths: list[int] = self._count.amax(dim=0).tolist()
        first = self._first.clamp(max=num_ticks - 1)
        self._begins_episode = episode_start.gather(1, first) & (self._count > 0)
        self._any_begins: list[bool] = self._begins_episode.any(dim=0).tolist()
        self._all_whole: list[bool] = (self._count == chunk_size).all(dim=0).tolist()
        self._cut_alike = bool((cut == cut[:1]).all())
        self._last_tick = num_ticks - 1

    def __iter__(self) -> Iterator[Round]:
        for piece, length in enumerate(self._lengths):
            ticks = self._first[:, piece, None] + torch.arange(length, device=self._first.device)
            yield Round(
                ticks.clamp(max=self._last_tick),
                self._count[:, piece],
                self._begins_episode[:, piece],
                self._any_begins[piece],
                self._all_whole[piece],
            )

    def cut(self, window: Tensor) -> Sequence[Tensor]:
        """window: (B, T, ...) -> (B, S, ...) for every round."""
        if self._cut_alike:
            return window.split_with_sizes(self._lengths, dim=1)
        return [pick(window, piece.ticks) for piece in self]

    def in_order(self, outputs: list[Tensor]) -> Tensor:
        """outputs: (B, S, ...) of every round -> (B, T, ...)."""
        if self._cut_alike:
            return torch.cat(outputs, dim=1)
        lengths = torch.tensor([0, *self._lengths[:-1]], device=self._number.device)
        return pick(torch.cat(outputs, dim=1), lengths.cumsum(dim=0)[self._number] + self._place)


def pick(x: Tensor, index: Tensor) -> Tensor:
    """x: (B, T, ...), index: (B, S) int64 -> (B, S, ...), of each element the entries that its row of `index` says."""
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))
