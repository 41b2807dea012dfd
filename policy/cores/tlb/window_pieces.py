"""Cut a training window into pieces that lie within one chunk of ticks and one episode.

The elements of a batch start their episodes, and so their chunks, at different ticks. The first
pieces of all elements run together, then their second pieces, and so on, whichever ticks these are:
a window takes as many rounds as the element with the most pieces has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.layers.gather import pick


@dataclass(frozen=True)
class Round:
    """One piece of each element, padded to the length S of the longest."""

    ticks: Tensor
    """(B, S) int64: the ticks of the window. Padding comes last and is any tick."""
    count: Tensor
    """(B,) int64: how many of the S ticks are not padding."""
    begins_episode: Tensor
    """(B,) bool: whether the first tick of the piece is the first of an episode."""
    any_begins: bool
    """Whether `begins_episode` is True for any element."""
    all_whole: bool
    """Whether the piece of every element is a whole chunk, from its first tick to its last."""


class WindowPieces:
    """The pieces of a window of T ticks. Iterating yields the rounds.

    `cut` splits a tensor of the window into the rounds, and `in_order` joins their outputs again.
    Where all elements are cut alike, as in most training, both are plain slices; indexing and its
    gradient would take a good part of a training step.
    """

    def __init__(
        self, phase: Tensor, num_ticks: int, chunk_size: int, episode_start: Tensor | None = None
    ) -> None:
        """Prepare the pieces.

        phase: (B,) int64, ticks of the current chunk before the window; episode_start: (B, T) bool.
        """
        tick = torch.arange(num_ticks, device=phase.device)
        if episode_start is None:
            episode_start = phase.new_zeros(len(phase), num_ticks, dtype=torch.bool)
        began = torch.where(episode_start, tick, -1).cummax(dim=1).values
        # (B, T): ticks since the start of the chunk before the window, or of the episode.
        age = torch.where(began >= 0, tick - began, phase[:, None] + tick)
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
        """Split a window (B, T, ...) into one tensor (B, S, ...) for every round."""
        if self._cut_alike:
            return window.split_with_sizes(self._lengths, dim=1)
        return [pick(window, piece.ticks) for piece in self]

    def in_order(self, outputs: list[Tensor]) -> Tensor:
        """Join the outputs of the rounds, (B, S, ...) each, to a window (B, T, ...)."""
        if self._cut_alike:
            return torch.cat(outputs, dim=1)
        lengths = torch.tensor([0, *self._lengths[:-1]], device=self._number.device)
        return pick(torch.cat(outputs, dim=1), lengths.cumsum(dim=0)[self._number] + self._place)
