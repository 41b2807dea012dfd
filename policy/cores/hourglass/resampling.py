"""How Hourglass shortens a sequence k times, and how it upsamples (Nawrot et al. 2021, section 2).

Both are causal: the group of a coarse element ends at the element at which it is computed, which is
the effect of the paper's shift to the right by k - 1 on a whole sequence. In shapes, E stands for
fine and J for coarse elements, and r for the tokens of an element, which are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.hourglass.elements import Carried, Elements, Reach, Recent, Shortened
from ttm.policy.cores.hourglass.positioned_attention import AttentionSizes, CarriedAttention
from ttm.policy.layers.gather import pick

Resampling = Callable[[int, int], nn.Module]
"""A constructor that takes the width D and the factor k."""


class AveragePooling(nn.Module):
    """Return the mean of each group."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()

    def forward(self, groups: Tensor) -> Tensor:
        """Map groups, (B, J, k, r, D), to (B, J, r, D)."""
        return groups.mean(dim=2)


class LinearPooling(nn.Module):
    """Apply a linear map to the concatenated elements of each group."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.linear = nn.Linear(factor * width, width)

    def forward(self, groups: Tensor) -> Tensor:
        """Map groups, (B, J, k, r, D), to (B, J, r, D)."""
        out: Tensor = self.linear(groups.transpose(2, 3).flatten(-2))
        return out


class Repeating(nn.Module):
    """Repeat the coarse element at every phase."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()

    def forward(self, coarse: Tensor, phase: Tensor) -> Tensor:
        """Return the upsampled elements, (B, E, r, D).

        coarse: (B, E, r, D), the newest coarse element at each fine one; phase: (B, E).
        """
        return coarse


class LinearUpsampling(nn.Module):
    """Apply to the coarse element a linear map of its own for each phase."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(width, factor * width)

    def forward(self, coarse: Tensor, phase: Tensor) -> Tensor:
        """See `Repeating.forward`."""
        parts = self.linear(coarse).unflatten(-1, (self.factor, -1))  # (B, E, r, k, D)
        by_phase = parts.transpose(2, 3).flatten(0, 1)  # (B * E, k, r, D)
        return pick(by_phase, phase.reshape(-1, 1)).view_as(coarse)


class Shortening(nn.Module):
    """Pool groups of k elements to one. The state keeps the k - 1 newest elements, zeros at first."""

    def __init__(self, name: str, factor: int, pooling: nn.Module, sizes: AttentionSizes) -> None:
        """`name` is the prefix of its part of the state, `sizes` those of a subclass's attention."""
        super().__init__()
        self.factor, self.pooling = factor, pooling
        self.rows = Recent(f"{name}.rows", factor - 1, sizes.width)
        self.shift = factor - 1
        """The paper's shift to the right. A smaller value lets outputs see the future; studies use it."""

    def forward(
        self, x: Tensor, elements: Elements, shortened: Shortened, carried: Carried
    ) -> Tensor:
        """Map x, (B, E, r, D), to (B, J, r, D)."""
        ahead = self.factor - 1 - self.shift
        rows = F.pad(self.rows(x, elements, carried), (0, 0, 0, 0, 0, ahead))
        back = torch.arange(self.factor - 1, -1, -1, device=x.device) - ahead
        wanted = shortened.source[..., None] + self.factor - 1 - back  # (B, J, k)
        groups = pick(rows, wanted.flatten(1)).reshape(*wanted.shape, *rows.shape[2:])
        of_episode = back <= pick(elements.index, shortened.source)[..., None]
        pooled: Tensor = self.pooling(torch.where(of_episode[..., None, None], groups, 0))
        return pooled


class AttentionShortening(Shortening):
    """Compute S(x) + Attention(S(x); x), then an MLP, where S is a pooling.

    Attention sees the whole window and not only the group.
    """

    def __init__(self, name: str, factor: int, pooling: nn.Module, sizes: AttentionSizes) -> None:
        super().__init__(name, factor, pooling, sizes)
        self.window = sizes.window
        self.attention = CarriedAttention(f"{name}.shorten", sizes, kept=sizes.window - 1)

    def forward(
        self, x: Tensor, elements: Elements, shortened: Shortened, carried: Carried
    ) -> Tensor:
        """See `Shortening.forward`."""
        pooled = super().forward(x, elements, shortened, carried)
        kept, new = self.window - 1, x.shape[1]
        index = pick(elements.index, shortened.source)
        sight = Reach(self.window, x.shape[2]).sight(kept + shortened.source, index, kept + new)
        out: Tensor = self.attention(pooled, x, elements, sight, carried)
        return out


class Upsampling(nn.Module):
    """Upsample the newest coarse element, which the state keeps, to each fine one."""

    def __init__(self, name: str, factor: int, spread: nn.Module, sizes: AttentionSizes) -> None:
        """See `Shortening.__init__`."""
        super().__init__()
        self.spread = spread
        self.held = Recent(f"{name}.held", 1, sizes.width)

    def forward(self, x: Tensor, coarse: Tensor, shortened: Shortened, carried: Carried) -> Tensor:
        """Map coarse elements, (B, J, r, D), to fine ones, (B, E, r, D), which x has the shape of."""
        held = self.held(coarse, shortened.elements, carried)
        out: Tensor = self.spread(pick(held, shortened.slot), shortened.phase)
        return out


class AttentionUpsampling(Upsampling):
    """Compute U + Attention(U; coarse), then an MLP, where U = x + upsampled coarse elements.

    Attention sees all coarse elements of the window.
    """

    def __init__(self, name: str, factor: int, spread: nn.Module, sizes: AttentionSizes) -> None:
        super().__init__(name, factor, spread, sizes)
        self.window, self.factor = sizes.window, factor
        self.attention = CarriedAttention(
            f"{name}.upsample", sizes, kept=sizes.window, spacing=factor
        )

    def forward(self, x: Tensor, coarse: Tensor, shortened: Shortened, carried: Carried) -> Tensor:
        """See `Upsampling.forward`."""
        spread = x + super().forward(x, coarse, shortened, carried)
        reach = Reach(self.window, x.shape[2], self.factor)
        newest = self.window - 1 + shortened.slot
        sight = reach.sight(newest, shortened.index, self.window + coarse.shape[1], shortened.phase)
        out: Tensor = self.attention(spread, coarse, shortened.elements, sight, carried)
        return out


SHORTENINGS: Mapping[str, tuple[type[Shortening], Resampling]] = MappingProxyType(
    {
        "average": (Shortening, AveragePooling),
        "linear": (Shortening, LinearPooling),
        "attention": (AttentionShortening, AveragePooling),
    }
)
"""The value of `HourglassConfig.pooling` -> module and its pooling.

Attention pooling takes averages for S, as the authors' code does.
"""

UPSAMPLINGS: Mapping[str, tuple[type[Upsampling], Resampling]] = MappingProxyType(
    {
        "repeat": (Upsampling, Repeating),
        "linear": (Upsampling, LinearUpsampling),
        "attention": (AttentionUpsampling, LinearUpsampling),
    }
)
"""The value of `HourglassConfig.upsampling` -> module and its upsampling."""
