"""How Hourglass (Nawrot et al. 2021, section 2) shortens a sequence k times, and how it brings it to length again.

Causal: the group of a coarse element ends at the element at which it is computed, which is what the paper's shift to
the right by k - 1 does to a whole sequence. Shapes have letters E and J for fine and coarse elements, r for the
tokens of one, which go the same way side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.hourglass.elements import Carried, Elements, Reach, Recent, Shortened
from ttm.policy.cores.hourglass.positioned_attention import AttentionSizes, CarriedAttention
from ttm.policy.cores.tlb.window_pieces import pick

Resampling = Callable[[int, int], nn.Module]
"""Made from the width and the factor k."""


class AveragePooling(nn.Module):
    """The mean of a group."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()

    def forward(self, groups: Tensor) -> Tensor:
        """groups: (B, J, k, r, D) -> (B, J, r, D)."""
        return groups.mean(dim=2)


class LinearPooling(nn.Module):
    """A linear map of a group's elements side by side."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.linear = nn.Linear(factor * width, width)

    def forward(self, groups: Tensor) -> Tensor:
        """groups: (B, J, k, r, D) -> (B, J, r, D)."""
        out: Tensor = self.linear(groups.transpose(2, 3).flatten(-2))
        return out


class Repeating(nn.Module):
    """The coarse element, whatever the phase."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()

    def forward(self, coarse: Tensor, phase: Tensor) -> Tensor:
        """coarse: (B, E, r, D), the newest at each fine element; phase: (B, E) -> (B, E, r, D)."""
        return coarse


class LinearUpsampling(nn.Module):
    """One linear map of the coarse element for each phase."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(width, factor * width)

    def forward(self, coarse: Tensor, phase: Tensor) -> Tensor:
        """See `Repeating`."""
        parts = self.linear(coarse).unflatten(-1, (self.factor, -1))  # (B, E, r, k, D)
        by_phase = parts.transpose(2, 3).flatten(0, 1)  # (B * E, k, r, D)
        return pick(by_phase, phase.reshape(-1, 1)).view_as(coarse)


class Shortening(nn.Module):
    """S: groups of k elements by a pooling. The state has the k - 1 newest elements, zeros at first."""

    def __init__(self, name: str, factor: int, pooling: nn.Module, sizes: AttentionSizes) -> None:
        """name: what its part of the state begins with; sizes: of attention, where a subclass has some."""
        super().__init__()
        self.factor, self.pooling = factor, pooling
        self.rows = Recent(f"{name}.rows", factor - 1, sizes.width)
        self.shift = factor - 1
        """The paper's shift to the right. With a smaller one outputs see the future: to show that it is needed."""

    def forward(
        self, x: Tensor, elements: Elements, shortened: Shortened, carried: Carried
    ) -> Tensor:
        """x: (B, E, r, D) -> (B, J, r, D)."""
        ahead = self.factor - 1 - self.shift
        rows = F.pad(self.rows(x, elements, carried), (0, 0, 0, 0, 0, ahead))
        back = torch.arange(self.factor - 1, -1, -1, device=x.device) - ahead
        wanted = shortened.source[..., None] + self.factor - 1 - back  # (B, J, k)
        groups = pick(rows, wanted.flatten(1)).reshape(*wanted.shape, *rows.shape[2:])
        of_episode = back <= pick(elements.index, shortened.source)[..., None]
        pooled: Tensor = self.pooling(torch.where(of_episode[..., None, None], groups, 0))
        return pooled


class AttentionShortening(Shortening):
    """S(x) + Attention(S(x); x), then a feed-forward. Attention reaches over the window, not only over the group."""

    def __init__(self, name: str, factor: int, pooling: nn.Module, sizes: AttentionSizes) -> None:
        super().__init__(name, factor, pooling, sizes)
        self.window = sizes.window
        self.attention = CarriedAttention(f"{name}.shorten", sizes, kept=sizes.window - 1)

    def forward(
        self, x: Tensor, elements: Elements, shortened: Shortened, carried: Carried
    ) -> Tensor:
        """See `Shortening`."""
        pooled = super().forward(x, elements, shortened, carried)
        kept, new = self.window - 1, x.shape[1]
        index = pick(elements.index, shortened.source)
        sight = Reach(self.window, x.shape[2]).sight(kept + shortened.source, index, kept + new)
        out: Tensor = self.attention(pooled, x, elements, sight, carried)
        return out


class Upsampling(nn.Module):
    """Gives each fine element the newest coarse one, by repeating or a linear map. The state has that one."""

    def __init__(self, name: str, factor: int, spread: nn.Module, sizes: AttentionSizes) -> None:
        """See `Shortening`."""
        super().__init__()
        self.spread = spread
        self.held = Recent(f"{name}.held", 1, sizes.width)

    def forward(self, x: Tensor, coarse: Tensor, shortened: Shortened, carried: Carried) -> Tensor:
        """x: (B, E, r, D), coarse: (B, J, r, D) -> (B, E, r, D)."""
        held = self.held(coarse, shortened.elements, carried)
        out: Tensor = self.spread(pick(held, shortened.slot), shortened.phase)
        return out


class AttentionUpsampling(Upsampling):
    """U + Attention(U; coarse), U = x + linear, then a feed-forward, over the window's coarse elements."""

    def __init__(self, name: str, factor: int, spread: nn.Module, sizes: AttentionSizes) -> None:
        super().__init__(name, factor, spread, sizes)
        self.window, self.factor = sizes.window, factor
        self.attention = CarriedAttention(
            f"{name}.upsample", sizes, kept=sizes.window, spacing=factor
        )

    def forward(self, x: Tensor, coarse: Tensor, shortened: Shortened, carried: Carried) -> Tensor:
        """See `Upsampling`."""
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
"""What a configuration's `pooling` means. The authors' code has averages for S in attention pooling."""

UPSAMPLINGS: Mapping[str, tuple[type[Upsampling], Resampling]] = MappingProxyType(
    {
        "repeat": (Upsampling, Repeating),
        "linear": (Upsampling, LinearUpsampling),
        "attention": (AttentionUpsampling, LinearUpsampling),
    }
)
"""What a configuration's `upsampling` means."""
