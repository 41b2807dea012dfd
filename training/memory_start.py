"""Ways to choose the memory at the first tick of a training window.

The paper trains windows of 8 ticks from zero memory (Ryoo et al. 2022), so that a network never
meets a memory older than a window. Whole episodes have no such limit, at the cost of gradients
through all of their ticks. Two other ways show a network older memories: carrying the memory of
the preceding window over without its gradient (truncated backpropagation through time, Williams &
Peng 1990), and running the ticks before the window without gradient (burn-in, Kapturowski et al.
2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from ttm.datasets.samplers import EpisodeSampler, LaneSampler, WindowSampler
from ttm.datasets.windows import WindowDataset
from ttm.policy.cores.core import CoreState
from ttm.training.options import MemoryStartConfig, Window


class Pick(NamedTuple):
    """The windows that make a batch."""

    places: Tensor
    """(B, 3) int64, as `WindowDataset.places` gives them."""
    restart: bool = False
    """Whether every window starts from the initial memory, so that nothing is taken over from the
    last batch."""
    ticks: int | None = None
    """T, where the longest of the windows needs fewer ticks than `WindowDataset.window`."""


class MemoryStart(ABC):
    """One way to start a window: which windows a batch has, and what their memory holds."""

    burn_in: int = 0
    """Ticks that run before each window, without gradient."""
    carries: bool = False
    """Whether a window's memory holds the ticks of its episode before the window."""
    overlapping: bool = False
    """Whether the windows of a pass overlap, so that sections of them can be drawn (see `Sections`)."""
    apart: int | None = None
    """Batches from one window of a section to the next; None to draw windows from all data."""

    @abstractmethod
    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Yield picks without end.

        Pick n is a function of the data set, the batch size and (seed, n) alone.
        """

    @abstractmethod
    def kept(self, memory: CoreState) -> CoreState | None:
        """Return the memory that the next batch starts from, given the memory after this batch.

        None stands for the initial memory.
        """


class FromZero(MemoryStart):
    """Every window starts from the initial memory, wherever it lies in its episode (the paper)."""

    overlapping = True

    def __init__(self, apart: int | None = None) -> None:
        self.apart = apart

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Yield windows drawn at random."""
        sampler = WindowSampler(
            len(windows),
            batch_size,
            seed=seed,
            first_batch=first_batch,
            mix=windows.window_mix,
            sections=None if self.apart is None else windows.sections(self.apart),
        )
        return (Pick(windows.places(indices)) for indices in sampler)

    def kept(self, memory: CoreState) -> None:
        """Return None, so that the next batch starts from the initial memory."""


class WholeEpisodes(FromZero):
    """Windows are whole episodes from their first tick, so that the initial memory is right.

    The data set must have one window for each episode.
    """

    overlapping = False

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Yield episodes of similar length; see `EpisodeSampler`."""
        lengths, shares = windows.episode_lengths, windows.shares
        mix = None if shares is None else shares.of_episodes()
        sampler = EpisodeSampler(lengths, batch_size, seed=seed, first_batch=first_batch, mix=mix)
        for indices in sampler:
            yield Pick(windows.places(indices), ticks=max(lengths[index] for index in indices))


class AfterBurnIn(FromZero):
    """The windows of `FromZero`, each after a burn-in of at most `ticks` ticks of its episode."""

    def __init__(self, ticks: int, apart: int | None = None) -> None:
        super().__init__(apart)
        self.burn_in = ticks


class Carried(MemoryStart):
    """A window continues with the memory that the preceding window of its episode left."""

    carries = True

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Yield the windows of a `LaneSampler`."""
        lengths, shares = windows.episode_lengths, windows.shares
        mix = None if shares is None else shares.of_ticks(lengths)
        sampler = LaneSampler(
            lengths, windows.window, batch_size, seed=seed, first_batch=first_batch, mix=mix
        )
        return (Pick(places, restart) for places, restart in sampler)

    def kept(self, memory: CoreState) -> CoreState:
        """Return the values without their gradient, which ends at the start of the batch."""
        return {name: value.detach() for name, value in memory.items()}


def memory_start(
    config: MemoryStartConfig, window: Window = 8, apart: int | None = None
) -> MemoryStart:
    """Return the way that `config` names; whole episodes start from the initial memory alone.

    apart: see `MemoryStart.apart`.
    """
    if window == "episode":
        return WholeEpisodes()
    if config.memory == "carry":
        return Carried()
    return AfterBurnIn(config.burn_in, apart) if config.memory == "burn-in" else FromZero(apart)
