"""Hourglass (Nawrot et al. 2021) for control: a Transformer that shortens its sequence in the middle.

A coarse element represents k ticks. It is computed at every k-th tick and held until the next one,
so a layer at scale k sees k times as far back, for the same cost and state. Unlike in the paper's
language model, the output at t may see the input at t.

The elements of a scale are counted from the start of each episode. All is computed by index, without
loops over ticks and branches on values, so that a tick takes the same path as a window. In shapes, E
stands for fine and J for coarse elements, and r for the tokens of an element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore, episode_ticks
from ttm.policy.errors import UserError
from ttm.policy.layers import AttentionBlock, layer_norm, pick, rotate, waves


@dataclass(frozen=True)
class HourglassConfig(SequenceConfig):
    """The hierarchy, its kinds of layers and their sizes.

    The r tokens of a tick form one element of the sequence: they see each other, and each is shortened
    together with its counterparts of other ticks. With r = 1 the model is the paper's.
    """

    hierarchy: str = "2@1 4@4 2@1"
    """Layers@scale from the input to the output; see `parse_hierarchy`."""
    pooling: Literal["average", "linear", "attention"] = "attention"
    upsampling: Literal["repeat", "linear", "attention"] = "attention"
    """How groups of elements become one, and one becomes a group. Defaults as in the authors' code."""
    position: Literal["relative", "rotary"] = "relative"
    """How attention sees ages: as in Transformer-XL, which the authors use, or as in RoFormer."""
    window: int = 8
    """The elements of its scale that each attention sees: 8 are 8 ticks at scale 1, 32 at scale 4."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the MLP that follows each attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_hierarchy(self.hierarchy)

    def build(self, width: int, num_inputs: int) -> Hourglass:
        """See `CoreConfig.build`. Heads must have the same number of channels, even for "rotary"."""
        return Hourglass(width, num_inputs, self)


@dataclass(frozen=True)
class Stage:
    """The layers of one scale, before and after the stages that it encloses."""

    before: int
    scale: int  # the number of elements of the input for one of this stage
    after: int = 0


@dataclass(frozen=True)
class Hierarchy:
    """The stages, from the outermost, which has scale 1, to the innermost."""

    stages: tuple[Stage, ...]

    @property
    def period(self) -> int:
        """The number of elements of the input after which all phases repeat: the innermost scale."""
        return self.stages[-1].scale


def parse_hierarchy(text: str) -> Hierarchy:
    """Parse the paper's notation, such as `2@1 4@4 2@1` or `2@1 1@2 4@4 1@2 2@1`.

    `2@1 4@4 2@1` stands for two layers at full length, four on a sequence shortened 4 times, and two at
    full length. Scales are relative to the input. Around the innermost there may be 0 layers, or other
    numbers before and after; `0@1 4@4 0@1` is `4@4` for short. Raises `UserError`, which names the fault.
    """

    def require(holds: bool, fault: str) -> None:
        if not holds:
            raise UserError(f"hierarchy '{text}' {fault}; give one such as '2@1 4@4 2@1'")

    for entry in text.split():
        fits = re.fullmatch(r"\d+@\d+", entry) is not None
        require(fits, f"has the entry '{entry}', which is not layers@scale")
    entries = [Stage(*map(int, entry.split("@"))) for entry in text.split()]
    require(bool(entries), "is empty")
    middle = len(entries) // 2
    way, back = entries[:middle], entries[:middle:-1]
    returns = [entry.scale for entry in way] == [entry.scale for entry in back]
    require(returns, "does not return by the way that it came")
    around = zip(way, back, strict=True)
    stages = [*(replace(out, after=home.before) for out, home in around), entries[middle]]
    if stages[0].scale != 1:
        stages = [Stage(0, 1), *stages]
    for outer, inner in pairwise(stages):
        larger = inner.scale > outer.scale and inner.scale % outer.scale == 0
        require(larger, f"goes from scale {outer.scale} to {inner.scale}, not to a larger multiple")
    require(stages[-1].before > 0, "has no layer at its innermost scale")
    return Hierarchy(tuple(stages))


@dataclass(frozen=True)
class Elements:
    """The E elements of one scale. Those of a batch that have fewer end with padding."""

    index: Tensor  # (B, E) int64: the number of earlier ones in the episode; any for padding
    count: Tensor  # (B,) int64: how many are not padding
    last: Tensor  # (B,) int64: `index` of the newest, which may lie before the window
    regular: bool  # whether no episode starts after the window's first tick

    @property
    def place(self) -> Tensor:
        """The place of each element in the window, (1, E)."""
        return torch.arange(self.index.shape[1], device=self.index.device).unsqueeze(0)

    def newest(self, x: Tensor, size: int) -> Tensor:
        """Return the newest of x, (B, size + E, ...), with zeros before the episode: (B, size, ...)."""
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
        index = pick(self.index, source) // factor
        coarse = Elements(index, count, self.last // factor, self.regular)
        return Shortened(coarse, source, slot, self.index // factor, phase)


@dataclass(frozen=True)
class Shortened:
    """J coarse elements, and their relation to the E fine ones."""

    elements: Elements
    source: Tensor  # (B, J) int64: the place of the fine element at which each is computed
    slot: Tensor  # (B, E) int64: the newest coarse one at each fine one; 0: from before the window
    index: Tensor  # (B, E) int64: the number of that coarse element in its episode
    phase: Tensor  # (B, E) int64: how many fine elements ago it was computed


@dataclass(frozen=True)
class Sight:
    """Which keys the queries see: those of its episode, at most window - 1 elements older.

    S elements of queries and P elements of keys have r tokens each.
    """

    mask: Tensor  # (B, 1, S r, P r) bool, True where a query sees a key
    age: Tensor  # (B or 1, S r, P r) int64: how much later the query is, in fine elements
    query_at: Tensor  # (B or 1, S r) int64: the positions of the queries, in the same unit
    key_at: Tensor  # (1, P r) int64: the positions of the keys

    @classmethod
    def of(
        cls,
        window: int,
        place: Tensor,
        index: Tensor,
        shape: tuple[int, int],
        spacing: int = 1,
        phase: Tensor | int = 0,
    ) -> Sight:
        """Return what is seen of P elements of r tokens; shape: (P, r).

        place: (B or 1, S), the newest key not later than each query, counted from key `window` - 1. index:
        (B, S), the number of that key in its episode. spacing: the elements of the queries' scale for one of
        the keys' scale. phase: (B, S), how much later the query is, in elements of its scale.
        """
        (num_keys, tokens), at = shape, window - 1 + place
        key = torch.arange(num_keys, device=at.device)
        age = at[..., None] - key  # (B or 1, S, P)
        mask = (age >= 0) & (age < window) & (age <= index[..., None])
        mask = mask.repeat_interleave(tokens, dim=1).repeat_interleave(tokens, dim=2)
        query_at = (at * spacing + phase).repeat_interleave(tokens, dim=1)
        key_at = (key[None] * spacing).repeat_interleave(tokens, dim=1)
        return cls(mask.unsqueeze(1), query_at[..., None] - key_at[:, None], query_at, key_at)


class Recent(nn.Module):
    """Keeps the newest `size` elements of a sequence in the state: name -> (B, size, r, channels)."""

    def __init__(self, name: str, size: int, channels: int) -> None:
        super().__init__()
        self.name, self.size, self.channels = name, size, channels

    def forward(self, x: Tensor, elements: Elements, state: CoreState) -> Tensor:
        """Put the kept elements before x, (B, E, r, channels), and keep the newest in `state`."""
        joined = torch.cat([state[self.name], x], dim=1)
        state[self.name] = elements.newest(joined, self.size)
        return joined


class RelativePosition(nn.Module):
    """Scores (q + u) k + (q + v) W R_age, as in Transformer-XL (Dai et al. 2019).

    R are sines and cosines of the age; u and v are learned for each head.
    """

    def __init__(self, width: int, num_heads: int, longest: int) -> None:
        """`longest` exceeds all ages that can be seen."""
        super().__init__()
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.age.weight)
        cosine, sine = waves(torch.arange(longest), width)
        self.register_buffer("sines", torch.cat([sine, cosine], dim=1).float(), persistent=False)

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, nh, S, hs) and keys (B, nh, P, hs) with positions, and mask or bias."""
        num_heads, size = query.shape[1], query.shape[3]
        ages = self.age(self.sines).unflatten(-1, (num_heads, size)).transpose(0, 1)
        by_age = (query + self.age_bias) @ ages.transpose(1, 2)  # (B, nh, S, ages)
        wanted = sight.age.clamp(0, ages.shape[1] - 1).unsqueeze(1)
        bias = by_age.gather(3, wanted.expand(len(query), num_heads, -1, -1)) * size**-0.5
        query = query + self.content_bias
        return query, keys, bias.masked_fill(~sight.mask, -torch.inf).to(query.dtype)


class RotaryPosition(nn.Module):
    """Rotation of queries and keys by their positions, as in RoFormer (Su et al. 2021)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width // num_heads % 2:
            size = f"not {width // num_heads} of {width} channels"
            raise UserError(f"rotary positions need an even head size, {size}; change num_heads")

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:

        def rotated(x: Tensor, positions: Tensor) -> Tensor:
            cosine, sine = (part.unsqueeze(1).to(x.dtype) for part in waves(positions, x.shape[-1]))
            return rotate(x, (cosine, sine))

        return rotated(query, sight.query_at), rotated(keys, sight.key_at), sight.mask


class CarriedAttention(nn.Module):
    """An attention block with positions, which keeps keys and values of earlier elements in the state."""

    def __init__(
        self, name: str, width: int, config: HourglassConfig, *, kept: int, spacing: int = 1
    ) -> None:
        """name: of its part of the state; kept: the number of elements in it; spacing: see `Sight.of`."""
        super().__init__()
        self.block = AttentionBlock(width, config.num_heads, config.mlp_size, "the Hourglass")
        self.position: nn.Module
        if config.position == "relative":
            self.position = RelativePosition(width, config.num_heads, config.window * spacing)
        else:
            self.position = RotaryPosition(width, config.num_heads)
        self.kept = Recent(name, kept, 2 * width)

    def forward(
        self, x: Tensor, context: Tensor, elements: Elements, sight: Sight, state: CoreState
    ) -> Tensor:
        """Let x, (B, S, r, D), attend to `elements`, (B, E, r, D), and to those before them."""
        new = torch.cat(self.block.keys_values(context), dim=-1)
        keys, values = self.kept(new, elements, state).flatten(1, 2).chunk(2, dim=-1)
        rows = x.flatten(1, 2)
        query, keys, mask = self.position(self.block.queries(rows), self.block.heads(keys), sight)
        values = self.block.heads(values)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return self.block.finish(rows, mixed).view_as(x)


def average(groups: Tensor) -> Tensor:
    """Map groups, (B, J, k, r, D), to (B, J, r, D)."""
    return groups.mean(dim=2)


class LinearPooling(nn.Module):
    """Apply a linear map to the concatenated elements of each group."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.linear = nn.Linear(factor * width, width)

    def forward(self, groups: Tensor) -> Tensor:
        return self.linear(groups.transpose(2, 3).flatten(-2))


def repeat(coarse: Tensor, phase: Tensor) -> Tensor:
    """Return `coarse`, (B, E, r, D), the newest coarse element at each fine one, at any phase."""
    return coarse


class LinearUpsampling(nn.Module):
    """Apply to the coarse element a linear map of its own for each phase."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(width, factor * width)

    def forward(self, coarse: Tensor, phase: Tensor) -> Tensor:
        parts = self.linear(coarse).unflatten(-1, (self.factor, -1))  # (B, E, r, k, D)
        by_phase = parts.transpose(2, 3).flatten(0, 1)  # (B * E, k, r, D)
        return pick(by_phase, phase.reshape(-1, 1)).view_as(coarse)


class Shortening(nn.Module):
    """Pool groups of k elements to one, S(x). The state keeps the k - 1 newest elements, zeros at first.

    It is causal: a group ends at the element at which its coarse one is computed, which is the effect of the
    paper's shift by k - 1.

    Of the kind "attention" it computes S(x) + Attention(S(x); x), then an MLP, where S is an average,
    as in the authors' code, and attention sees the whole window and not only the group.
    """

    def __init__(self, name: str, factor: int, width: int, config: HourglassConfig) -> None:
        super().__init__()
        self.factor, self.window = factor, config.window
        linear = config.pooling == "linear"
        self.pooling = LinearPooling(width, factor) if linear else average
        self.rows = Recent(f"{name}.rows", factor - 1, width)
        self.attention = None
        if config.pooling == "attention":
            name = f"{name}.shorten"
            self.attention = CarriedAttention(name, width, config, kept=config.window - 1)

    def forward(
        self, x: Tensor, elements: Elements, shortened: Shortened, state: CoreState
    ) -> Tensor:
        """Map x, (B, E, r, D), to (B, J, r, D)."""
        rows = self.rows(x, elements, state)
        back = torch.arange(self.factor - 1, -1, -1, device=x.device)
        wanted = shortened.source[..., None] + self.factor - 1 - back  # (B, J, k)
        groups = pick(rows, wanted.flatten(1)).reshape(*wanted.shape, *rows.shape[2:])
        index = pick(elements.index, shortened.source)
        of_episode = back <= index[..., None]
        pooled = self.pooling(torch.where(of_episode[..., None, None], groups, 0))
        if self.attention is None:
            return pooled
        shape = (self.window - 1 + x.shape[1], x.shape[2])
        sight = Sight.of(self.window, shortened.source, index, shape)
        return self.attention(pooled, x, elements, sight, state)


class Upsampling(nn.Module):
    """Upsample the newest coarse element, which the state keeps, to each fine one.

    Of the kind "attention" it computes U + Attention(U; coarse), then an MLP, where U = x + linearly
    upsampled coarse elements, and attention sees all coarse elements of the window.
    """

    def __init__(self, name: str, factor: int, width: int, config: HourglassConfig) -> None:
        super().__init__()
        self.window, self.factor = config.window, factor
        repeats = config.upsampling == "repeat"
        self.spread = repeat if repeats else LinearUpsampling(width, factor)
        self.held = Recent(f"{name}.held", 1, width)
        self.attention = None
        if config.upsampling == "attention":
            sizes = {"kept": config.window, "spacing": factor}
            self.attention = CarriedAttention(f"{name}.upsample", width, config, **sizes)

    def forward(self, x: Tensor, coarse: Tensor, shortened: Shortened, state: CoreState) -> Tensor:
        """Map coarse elements, (B, J, r, D), to fine ones, (B, E, r, D), which x has the shape of."""
        held = self.held(coarse, shortened.elements, state)
        spread = self.spread(pick(held, shortened.slot), shortened.phase)
        if self.attention is None:
            return spread
        shape, coarser = (self.window + coarse.shape[1], x.shape[2]), (self.factor, shortened.phase)
        sight = Sight.of(self.window, shortened.slot, shortened.index, shape, *coarser)
        return self.attention(x + spread, coarse, shortened.elements, sight, state)


class Scale(nn.Module):
    """The layers of one scale, with the coarser scales between the first and the second half."""

    def __init__(self, stages: Sequence[Stage], width: int, config: HourglassConfig) -> None:
        super().__init__()
        outer, *within = stages
        self.window, kept = config.window, config.window - 1

        def layers(where: str, count: int) -> nn.ModuleList:
            names = (f"scale{outer.scale}.{where}{i}" for i in range(count))
            return nn.ModuleList(CarriedAttention(name, width, config, kept=kept) for name in names)

        before = layers("before", outer.before)
        valley = Valley(stages, width, config) if within else None
        after = layers("after", outer.after)
        self.before, self.after, self.valley = before, after, valley

    def forward(self, x: Tensor, elements: Elements, state: CoreState) -> Tensor:
        """Map x, (B, E, r, D) of `elements`, to the same shape."""
        shape = (self.window - 1 + x.shape[1], x.shape[2])
        sight = Sight.of(self.window, elements.place, elements.index, shape)
        for layer in self.before:
            x = layer(x, x, elements, sight, state)
        if self.valley is not None:
            x = x + self.valley(x, elements, state)
        for layer in self.after:
            x = layer(x, x, elements, sight, state)
        return x


class Valley(nn.Module):
    """Shorten the sequence k times, run the next scale on it, and upsample."""

    def __init__(self, stages: Sequence[Stage], width: int, config: HourglassConfig) -> None:
        super().__init__()
        outer, inner = stages[:2]
        self.factor, name = inner.scale // outer.scale, f"scale{outer.scale}"
        self.shorten = Shortening(name, self.factor, width, config)
        self.inner = Scale(stages[1:], width, config)
        self.upsample = Upsampling(name, self.factor, width, config)

    def forward(self, x: Tensor, elements: Elements, state: CoreState) -> Tensor:
        shortened = elements.shortened(self.factor)
        coarse = self.shorten(x, elements, shortened, state)
        coarse = self.inner(coarse, shortened.elements, state)
        return self.upsample(x, coarse, shortened, state)


class Hourglass(SequenceCore):
    """A Transformer whose elements are ticks of r tokens each, shortened towards the middle.

    The state holds "tick", (B,) int64, the ticks since the start of the episode; from where all
    windows are full it counts the phase alone, and so stays small. At each scale s it also holds,
    for elements of r tokens each:

    - "scale<s>.before<i>" and "scale<s>.after<i>": keys and values of the layers, window - 1
      elements of 2 D channels;
    - "scale<s>.rows": the last k - 1 elements, of D channels;
    - "scale<s>.held": the newest coarse element, of D channels;
    - "scale<s>.shorten": the fine keys and values of attention pooling, window - 1 elements of 2 D;
    - "scale<s>.upsample": the coarse keys and values of attention upsampling, window elements of 2 D.

    Every tick costs the same: it computes the coarse elements, and keeps them where it is their turn.
    """

    def __init__(self, width: int, num_inputs: int, config: HourglassConfig) -> None:
        super().__init__(width, num_inputs, config)
        hierarchy = parse_hierarchy(config.hierarchy)
        self.period, self.full = hierarchy.period, hierarchy.period * config.window
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        self.scales = Scale(hierarchy.stages, width, config)
        self.norm = layer_norm(width)
        self.memory_names = tuple(f"scale{stage.scale}.held" for stage in hierarchy.stages[:-1])

    def initial_state(self, batch_size: int) -> CoreState:
        kept = [module for module in self.modules() if isinstance(module, Recent)]
        tick = torch.zeros(batch_size, dtype=torch.int64, device=self.slot.device)
        rows = {x.name: self.zeros(batch_size, x.size, self.num_outputs, x.channels) for x in kept}
        return {"tick": tick, **rows}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        state = self.initial_state(tokens.shape[0]) if state is None else state
        ticks = episode_ticks(state["tick"], tokens.shape[1], episode_start)
        count = torch.full_like(state["tick"], tokens.shape[1])
        elements = Elements(ticks, count, ticks[:, -1], regular=episode_start is None)
        state = dict(state)
        x = self.scales(self.read_all(tokens) + self.slot, elements, state)
        after = ticks[:, -1] + 1  # once all windows are full, only the phase matters
        state["tick"] = torch.where(after < self.full, after, self.full + after % self.period)
        return self.norm(x), state
