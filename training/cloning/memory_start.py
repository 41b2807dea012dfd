"""What the memory holds at the first tick of a training window: nothing, or what ran before.

The paper trains windows of 8 ticks from zero memory (Ryoo et al. 2022), so that a network never meets a memory
that is older. Two others show it such memories: the one of the window before, carried over without its gradient
(truncated backpropagation through time, Williams & Peng 1990), and that of a stretch of ticks run without
gradient before the window (burn-in, Kapturowski et al. 2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from ttm.datasets.windows.lanes import LaneSampler
from ttm.datasets.windows.windows import WindowDataset, WindowSampler
from ttm.policy.cores.temporal_core import CoreState


class Pick(NamedTuple):
    """Which windows make a batch."""

    places: Tensor
    """(B, 3) int64, as `WindowDataset.places` gives them."""
    restart: bool = False
    """No window goes on with the memory of the last batch."""


class MemoryStart(ABC):
    """One way to begin a window: which windows a batch has, what runs before them, what passes between batches."""

    burn_in: int = 0
    """Ticks that run before each window, without gradient."""

    @abstractmethod
    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Endless; pick n is a function of the data set, the batch's size and (seed, n) alone."""

    @abstractmethod
    def kept(self, memory: CoreState) -> CoreState | None:
        """What the next batch begins with, of the memory after this one's windows. None: the initial memory."""


class FromZero(MemoryStart):
    """Every window begins with the initial memory, wherever it lies in its episode, as in the paper."""

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Windows drawn at random."""
        sampler = WindowSampler(len(windows), batch_size, seed=seed, first_batch=first_batch)
        return (Pick(windows.places(indices)) for indices in sampler)

    def kept(self, memory: CoreState) -> None:
        """Nothing."""


class AfterBurnIn(FromZero):
    """The same windows, each after the ticks before it: from the episode's start, or at most `ticks` of them."""

    def __init__(self, ticks: int) -> None:
        self.burn_in = ticks


class Carried(MemoryStart):
    """A window goes on with the memory that the one before it in its episode left, so that memories grow old."""

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """See `LaneSampler`."""
        lengths, window = windows.episode_lengths, windows.window
        sampler = LaneSampler(lengths, window, batch_size, seed=seed, first_batch=first_batch)
        return (Pick(places, restart) for places, restart in sampler)

    def kept(self, memory: CoreState) -> CoreState:
        """The values alone: no gradient flows from one batch into the last."""
        return {name: value.detach() for name, value in memory.items()}


MEMORY_STARTS: Mapping[str, Callable[[int], MemoryStart]] = MappingProxyType(
    {"zero": lambda ticks: FromZero(), "carry": lambda ticks: Carried(), "burn-in": AfterBurnIn}
)
"""`ttm train --memory` -> made from --burn-in's ticks."""
