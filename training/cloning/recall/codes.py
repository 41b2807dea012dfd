"""Short codes of what a camera frame shows, from the features of frozen vision.

The features of all cameras at a tick are projected on the leading principal components of their
differences between ticks of one episode, and whitened: the differences of codes have variance 1 in
each dimension. What never changes within an episode, such as the room, has no part in a code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ttm.policy.errors import UserError
from ttm.training.cloning.frozen_vision.feature_cache import EpisodeFeatures

CODE_SIZE = 96
"""The most dimensions of a code."""
PAIRS = 4096
"""Pairs of ticks from which the components are found."""
FAINTEST = 1e-3
"""Components whose spread is a smaller portion of the largest spread are left out: the differences
that they stand for are rounding."""
MAPS_AT_ONCE = 1024


def tick_codes(features: EpisodeFeatures, lengths: Sequence[int], seed: int) -> Tensor:
    """Return the code of each tick in each version, (versions, num_ticks, C) float32.

    lengths: the ticks of each episode. C is `CODE_SIZE`, or less where the frames differ in fewer
    ways. Raises `UserError` if no frame differs from another one of its episode.
    """
    generator = torch.Generator().manual_seed(seed)
    differences = _differences(features, lengths, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the randomised decomposition
        wanted = min(CODE_SIZE + 16, *differences.shape)
        _, scales, components = torch.svd_lowrank(differences, q=wanted, niter=4)
    scales, components = scales[:CODE_SIZE], components[:, :CODE_SIZE]
    if scales[0] == 0:
        raise UserError(
            "--recall-weight needs frames that differ within an episode, and here none does; "
            "leave it out"
        )
    clear = scales > FAINTEST * scales[0]
    spread = scales[clear] / len(differences) ** 0.5
    return _projected(features, components[:, clear] / spread)


def _differences(
    features: EpisodeFeatures, lengths: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Return differences of the features of two ticks of one episode, (PAIRS, all features)."""

    def draw(high: int) -> Tensor:
        return torch.randint(high, (PAIRS,), generator=generator)

    ticks = torch.tensor(lengths)
    first = torch.repeat_interleave(ticks.cumsum(0) - ticks, ticks)  # first tick of the episode
    one, version = draw(len(first)), draw(features.versions)
    length = torch.repeat_interleave(ticks, ticks)[one]
    other = first[one] + (torch.rand(PAIRS, generator=generator) * length).long()
    parts = []
    for name, rows in features.rows.items():
        maps = features.stores[name].maps
        parts.append(maps[rows[version, one]].float() - maps[rows[version, other]].float())
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def _projected(features: EpisodeFeatures, matrix: Tensor) -> Tensor:
    """Return the sum over cameras of their features times their rows of `matrix`."""
    codes, start = torch.zeros(()), 0
    for name, rows in features.rows.items():
        maps = features.stores[name].maps.flatten(1)  # (U, h * w * C)
        part = matrix[start : start + maps.shape[1]]
        table = torch.cat([some.float() @ part for some in maps.split(MAPS_AT_ONCE)])
        codes = codes + table[rows]
        start += maps.shape[1]
    return codes
