"""The recall loss: the core's outputs must tell what has been seen and is not seen now.

Behaviour cloning alone rewards a memory only at the few ticks whose action depends on the past, and
only once the whole chain from seeing to acting works. This loss, which is ours, rewards the memory
at every tick for what it keeps. It needs neither labels nor a known task.

Its limits: the target holds the extremes of the past, so that it cannot tell how often something
was seen, in which order, or when. Something that looks like what is seen now, in the codes, cannot
be told apart from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.layers import Mlp
from ttm.training.frozen_vision import EpisodeFeatures

HIDDEN_SIZE = 256
RECALL = ("recall", "recall_ratio")
"""The names of the results of `RecallLoss`."""


class RecallLoss(nn.Module):
    """Tell the targets of `RecallTargets` from the mean of the core's output tokens, by an MLP.

    The network belongs to the training; checkpoints do not hold it.
    """

    def __init__(self, width: int, size: int, weight: float) -> None:
        """width: D of the tokens. size: C of the targets. weight: of this loss in the total."""
        super().__init__()
        self.weight = weight
        self.mlp = Mlp(width, HIDDEN_SIZE, size)

    def forward(self, outputs: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the smooth L1 error as "recall", and its ratio to that of telling nothing.

        outputs: (B, T, R, D). targets: (B, T, C). valid: (B, T) bool, False at padding. The ratio,
        "recall_ratio", is about 1 as long as the outputs hold nothing of the past, and falls when
        the memory learns.
        """
        told: Tensor = self.mlp(outputs.mean(dim=2))
        error = F.smooth_l1_loss(told[valid], targets[valid])
        nothing = F.smooth_l1_loss(torch.zeros_like(targets[valid]), targets[valid])
        return {"recall": error, "recall_ratio": (error / nothing.clamp_min(1e-12)).detach()}


def largest_differences(codes: Tensor, highest: Tensor, lowest: Tensor) -> Tensor:
    """Return the largest difference between a past code and the present one, with its sign.

    codes: (..., C). highest, lowest: the largest and the smallest value of each dimension so far,
    of the same shape.
    """
    above, below = highest - codes, lowest - codes
    return torch.where(above > -below, above, below)


class RecallTargets:
    """The targets of all ticks of a data set: the largest difference of a past code to the present.

    At tick t, in each dimension of the codes c, the target is the c_s - c_t of largest magnitude
    over the ticks s before t. It is 0 where everything that was seen is still seen.
    """

    def __init__(self, codes: Tensor, lengths: Sequence[int]) -> None:
        """codes: (versions, num_ticks, C), of episodes of these lengths one after another."""
        self.codes = codes
        parts = codes.split(list(lengths), dim=1)
        self._highest = torch.cat([part.cummax(dim=1).values for part in parts], dim=1)
        self._lowest = torch.cat([part.cummin(dim=1).values for part in parts], dim=1)

    @property
    def size(self) -> int:
        """C, the dimensions of a target."""
        return self.codes.shape[2]

    def at(
        self, ticks: Tensor, versions: Tensor | None = None, *, whole_past: bool = False
    ) -> Tensor:
        """Return the targets of windows of dataset ticks (B, T), as (B, T, C).

        versions: (B,) int64; None for the frames as recorded. whole_past: whether the ticks of the
        episode before the window count as seen, because its memory is carried over. Otherwise the
        past begins with the window.
        """
        version = torch.zeros(len(ticks), dtype=torch.int64) if versions is None else versions
        at = version[:, None], ticks
        codes = self.codes[at]
        if whole_past:
            return largest_differences(codes, self._highest[at], self._lowest[at])
        return largest_differences(codes, codes.cummax(1).values, codes.cummin(1).values)


CODE_SIZE = 96
"""The most dimensions of a code."""
PAIRS = 4096
"""Pairs of ticks from which the components are found."""
FAINTEST = 1e-3
"""Components whose spread is a smaller portion of the largest spread are left out: the differences
that they stand for are rounding."""
MAPS_AT_ONCE = 1024


def tick_codes(features: EpisodeFeatures, lengths: Sequence[int], seed: int) -> Tensor:
    """Return a short code of what the cameras show at each tick, (versions, num_ticks, C) float32.

    The features of all cameras are projected on the leading principal components of their differences
    between ticks of one episode, and whitened: the differences of codes have variance 1 in each
    dimension. What never changes within an episode, such as the room, has no part in a code.

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
