"""Which elements of a scale of a hierarchy a window of ticks holds, and what is kept of those before the window.

A scale k has one element for every k ticks, counted from the episode's start, so elements of a batch that began at
different ticks, and episodes that begin within a window, have theirs at different ticks. Everything here is
worked out by index, with no loop over ticks and no branch on a value: a single tick runs through it as a window does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.cores.tlb.window_pieces import pick


@dataclass(frozen=True)
class Elements:
    """The E elements of one scale; in a batch some have fewer, and fillers at the end."""

    index: Tensor
    """(B, E) int64: how many of this scale came before in the same episode; fillers have any such number."""
    count: Tensor
    """(B,) int64: how many are no fillers."""
    last: Tensor
    """(B,) int64: `index` of the newest element, in the window or, if it has none, before it."""
    regular: bool
    """Whether no episode begins after the window's first tick, so that coarser elements are evenly spaced."""

    @property
    def place(self) -> Tensor:
        """(1, E): where each stands in the window."""
        return torch.arange(self.index.shape[1], device=self.index.device).unsqueeze(0)

    def newest(self, x: Tensor, size: int) -> Tensor:
        """x: (B, size + E, ...), of elements before the window and in it -> (B, size, ...): the newest of them.

        Zeros for what was before the episode's start.
        """
        place = torch.arange(size, device=x.device)
        kept = pick(x, self.count[:, None] + place)
        of_episode = size - 1 - place <= self.last[:, None]  # (B, size)
        return torch.where(of_episode.view(*of_episode.shape, *[1] * (x.dim() - 2)), kept, 0)

    def shortened(self, factor: int) -> Shortened:
        """The elements of the scale `factor` times coarser: one where `index` is a multiple of `factor`."""
        size = self.index.shape[1]
        phase = self.index % factor
        slot = ((phase == 0) & (self.place < self.count[:, None])).cumsum(dim=1)  # (B, E)
        count = slot[:, -1]
        most = -(-size // factor) if self.regular else max(1, int(count.max()))
        wanted = torch.arange(most, device=slot.device)
        source = (slot[:, None] <= wanted[:, None]).sum(dim=-1).clamp(max=size - 1)  # (B, J)
        coarse = Elements(
            pick(self.index, source) // factor, count, self.last // factor, self.regular
        )
        return Shortened(coarse, source, slot, self.index // factor, phase)


@dataclass(frozen=True)
class Shortened:
    """J coarse elements, and how E fine ones belong to them."""

    elements: Elements
    source: Tensor
    """(B, J) int64: the fine element at which each is computed."""
    slot: Tensor
    """(B, E) int64: which is the newest at a fine element, 1 for the window's first, 0 for the one from before."""
    index: Tensor
    """(B, E) int64: that one's number in its episode."""
    phase: Tensor
    """(B, E) int64: how many fine elements ago that was computed."""


@dataclass(frozen=True)
class Sight:
    """What queries see of keys, by token: each of S or P elements is r of them."""

    mask: Tensor
    """(B, 1, S r, P r) bool, True where seen."""
    age: Tensor
    """(B or 1, S r, P r) int64: by how many elements of the finer scale the query is later."""
    query_at: Tensor
    """(B or 1, S r) int64, where each is, so counted."""
    key_at: Tensor
    """(1, P r) int64."""


@dataclass(frozen=True)
class Reach:
    """Which keys a query sees: those of the same episode that are at most window - 1 elements older."""

    window: int
    tokens: int
    """r, tokens of an element."""
    spacing: int = 1
    """Elements of the queries' scale for one of the keys'."""

    def sight(self, at: Tensor, index: Tensor, num_keys: int, phase: Tensor | None = None) -> Sight:
        """at: (B or 1, S), the newest of `num_keys` (P) keys that is not in a query's future; index: (B, S), of it.

        phase: (B, S), by how much the query is later than that key; None for not at all.
        """
        key = torch.arange(num_keys, device=at.device)
        age = at[..., None] - key  # (B or 1, S, P)
        mask = (age >= 0) & (age < self.window) & (age <= index[..., None])
        query_at, key_at = at * self.spacing, key[None] * self.spacing
        query_at = query_at if phase is None else query_at + phase
        query_at, key_at = (x.repeat_interleave(self.tokens, dim=1) for x in (query_at, key_at))
        mask = mask.repeat_interleave(self.tokens, dim=1).repeat_interleave(self.tokens, dim=2)
        return Sight(mask.unsqueeze(1), query_at[..., None] - key_at[:, None], query_at, key_at)


@dataclass(frozen=True)
class Carried:
    """A core's state before a window, and the state after it as it is being made."""

    before: CoreState
    after: CoreState = field(default_factory=dict)


class Recent(nn.Module):
    """The newest `size` elements of something, kept in the state under a name: (B, size, r, channels)."""

    def __init__(self, name: str, size: int, channels: int) -> None:
        super().__init__()
        self.name, self.size, self.channels = name, size, channels

    def forward(self, x: Tensor, elements: Elements, carried: Carried) -> Tensor:
        """x: (B, E, r, channels) of `elements` -> (B, size + E, r, channels), those from before first."""
        joined = torch.cat([carried.before[self.name], x], dim=1)
        carried.after[self.name] = elements.newest(joined, self.size)
        return joined
