"""What the study measures of a trained policy: error in use, and drift over long chains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.network.policy import Policy
from ttm.training.bench.drift.chains import Chain, lay_chains
from ttm.training.bench.drift.measure import DriftRuns, measure
from ttm.training.cloning.loop.validation import EpisodeErrors
from ttm.training.study.memory_start.material import Material
from ttm.training.study.memory_start.options import MemoryStartOptions


@dataclass(frozen=True)
class Found:
    """The measurements of one training."""

    in_use: float
    """Normalised error on held-out episodes, whose memory is empty at their start."""
    changing: DriftRuns
    """Chains in which the instruction changes from episode to episode."""
    same: DriftRuns
    """Chains of one instruction each."""
    old_memory: float
    """Portion of a new memory token that is old memory, by the weights of the write; NaN if
    unknown."""


class Examination:
    """Held-out episodes and chains of them, on which policies are measured."""

    def __init__(self, options: MemoryStartOptions, material: Material) -> None:
        episodes = material.held_out
        longest = max(episode.num_samples for episode in episodes)
        self.windows = material.windows(episodes, longest, "none")
        self.statistics = material.statistics
        lengths = self.windows.episode_lengths
        self.changing = lay_chains(lengths, options.chains, options.ticks, seed=0)
        self.same = self._chains_of_one_instruction(options)

    def __call__(self, policy: Policy) -> Found:
        """Measure `policy`."""
        in_use = EpisodeErrors(self.windows, self.statistics).policy(policy).normalized
        changing = measure(policy, self.windows, self.statistics, self.changing)
        with old_memory(policy) as shares:
            same = measure(policy, self.windows, self.statistics, self.same)
        return Found(in_use, changing, same, float(np.mean(shares)))

    def _chains_of_one_instruction(self, options: MemoryStartOptions) -> list[Chain]:
        lengths = self.windows.episode_lengths
        texts = [episode.instruction for episode in self.windows.episodes]
        chains = []
        for number, text in zip(
            range(options.chains), itertools.cycle(sorted(set(texts))), strict=False
        ):
            alike = [index for index, other in enumerate(texts) if other == text]
            some = [lengths[index] for index in alike]
            (chain,) = lay_chains(some, 1, options.ticks, seed=number)
            chains.append([stretch._replace(episode=alike[stretch.episode]) for stretch in chain])
        return chains


@contextmanager
def old_memory(policy: Policy) -> Iterator[list[float]]:
    """Record the mean share of old memory in the new memory, tick by tick.

    The list holds NaN unless a Token Turing Machine writes by summarisation.
    """
    shares: list[float] = []

    def listen(write: Any, groups: tuple[Tensor, ...], memory: Tensor) -> None:
        tokens = torch.cat(groups, dim=1) + (0 if write.position is None else write.position)
        weights = write.summarizer.weights(tokens)  # (B, P, m)
        shares.append(float(weights[:, : groups[0].shape[1]].sum(dim=1).mean()))

    core: Any = policy.core
    if isinstance(core.unit.write, PositionedSummarizer):
        hook = core.unit.write.register_forward_hook(listen)
        yield shares
        hook.remove()
    else:
        yield [np.nan]
