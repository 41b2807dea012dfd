"""Which elements of each scale a window of ticks holds, and what is kept of those before it.

A scale k has one element for every k ticks, counted from the start of the episode. So elements of a
batch whose episodes start at different ticks, within the window or before it, have their coarse
elements at different ticks. All of this is computed by index, without loops over ticks and without
branches on values: a single tick takes the same path as a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.layers.gather import pick


@dataclass(frozen=True)
class Elements:
    """The E elements of one scale. Elements of a batch that have fewer end with padding."""

    index: Tensor
    """(B, E) int64: the number of earlier elements of this scale in the episode; any for padding."""
    count: Tensor
    """(B,) int64: how many are not padding."""
    last: Tensor
    """(B,) int64: `index` of the newest element, which lies before the window if it holds none."""
    regular: bool
    """Whether no episode starts after the window's first tick: coarse elements are evenly spaced."""

    @property
    def place(self) -> Tensor:
        """The place of each element in the window, (1, E)."""
        return torch.arange(self.index.shape[1], device=self.index.device).unsqueeze(0)

    def newest(self, x: Tensor, size: int) -> Tensor:
        """Return the newest `size` elements of x, with zeros for those before the episode.

        x: (B, size + E, ...), elements before the window and in it. Returns (B, size, ...).
        """
        place = torch.arange(size, device=x.device)
        kept = pick(x, self.count[:, None] + place)
        of_episode = size - 1 - place <= self.last[:, None]  # (B, size)
        return torch.where(of_episode.view(*of_episode.shape, *[1] * (x.dim() - 2)), kept, 0)

    def shortened(self, factor: int) -> Shortened:
        """Return the elements of the next scale: one where `index` is a multiple of `factor`."""
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
    """J coarse elements, and their relation to the E fine ones."""

    elements: Elements
    source: Tensor
    """(B, J) int64: the place of the fine element at which each is computed."""
    slot: Tensor
    """(B, E) int64: the newest coarse element at each fine one.

    0 stands for the newest from before the window, and 1 for the first of the window.
    """
    index: Tensor
    """(B, E) int64: the number of that coarse element in its episode."""
    phase: Tensor
    """(B, E) int64: how many fine elements ago it was computed."""


@dataclass(frozen=True)
class Sight:
    """Which keys the queries see, and where both are, by token.

    S elements of queries and P elements of keys have r tokens each.
    """

    mask: Tensor
    """(B, 1, S r, P r) bool, True where a query sees a key."""
    age: Tensor
    """(B or 1, S r, P r) int64: how much later the query is, in elements of the finer scale."""
    query_at: Tensor
    """(B or 1, S r) int64: the positions of the queries, in the same unit."""
    key_at: Tensor
    """(1, P r) int64: the positions of the keys."""


@dataclass(frozen=True)
class Reach:
    """The rule for what a query sees: keys of its episode, at most window - 1 elements older."""

    window: int
    tokens: int
    """r, tokens of an element."""
    spacing: int = 1
    """The number of elements of the queries' scale for one of the keys' scale."""

    def sight(self, at: Tensor, index: Tensor, num_keys: int, phase: Tensor | None = None) -> Sight:
        """Apply the rule.

        at: (B or 1, S), the newest of the `num_keys` (P) keys that is not later than each query.
        index: (B, S), the number of that key in its episode.
        phase: (B, S), how much later the query is, in elements of its scale; None for 0.
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
    """The state of the core before a window, and the state after it, which grows part by part."""

    before: CoreState
    after: CoreState = field(default_factory=dict)


class Recent(nn.Module):
    """Keeps the newest `size` elements of a sequence in the state: name -> (B, size, r, channels)."""

    def __init__(self, name: str, size: int, channels: int) -> None:
        super().__init__()
        self.name, self.size, self.channels = name, size, channels

    def forward(self, x: Tensor, elements: Elements, carried: Carried) -> Tensor:
        """Put the kept elements before those of the window, and keep the newest.

        x: (B, E, r, channels) of `elements`. Returns (B, size + E, r, channels).
        """
        joined = torch.cat([carried.before[self.name], x], dim=1)
        carried.after[self.name] = elements.newest(joined, self.size)
        return joined
