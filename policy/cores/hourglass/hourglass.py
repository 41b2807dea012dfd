"""Hourglass (Nawrot et al. 2021) for control: a Transformer that shortens its sequence in the middle.

A coarse element represents k ticks. It is computed at every k-th tick and held until the next one,
so a layer at scale k sees k times as far back, for the same cost and state. The paper's language
model shifts the whole sequence by one more tick, because there the output at t must not see the input
at t. A robot's action may see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ttm.policy.cores.hourglass.elements import Carried, Elements, Reach, Recent
from ttm.policy.cores.hourglass.hierarchy import Stage, parse_hierarchy
from ttm.policy.cores.hourglass.positioned_attention import AttentionSizes, CarriedAttention
from ttm.policy.cores.hourglass.resampling import SHORTENINGS, UPSAMPLINGS, Shortening, Upsampling
from ttm.policy.cores.sequence_core import SequenceCore
from ttm.policy.cores.temporal_core import CoreConfig, CoreState
from ttm.policy.layers.norms import layer_norm


@dataclass(frozen=True)
class HourglassConfig(CoreConfig):
    """The hierarchy, its kinds of layers and their sizes."""

    process_size: int = 8
    """r, the tokens to which the inputs of a tick are summarised, and the output tokens.

    They form one element of the sequence: they see each other, and each is shortened together with
    its counterparts of other ticks. With 1, the model is the paper's.
    """
    bottleneck: int = 64
    """Hidden width of the summariser's MLP."""
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

    With `2@1 4@4 2@1` and window W these are r D (16 (W - 1) + 4 + 2 (W - 1) + 2 W) floats. Every
    tick costs the same: it computes the coarse elements, and keeps them where it is their turn. The
    held coarse elements are shown as the memory; a hierarchy of one scale has caches alone.
    """

    def __init__(self, width: int, num_inputs: int, config: HourglassConfig) -> None:
        super().__init__(width, num_inputs, config)
        hierarchy = parse_hierarchy(config.hierarchy)
        self.period, self.full = hierarchy.period, hierarchy.period * config.window
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        sizes = AttentionSizes(
            width, config.num_heads, config.mlp_size, config.window, config.position
        )
        self.scales = build_scales(hierarchy.stages, config, sizes)
        self.norm = layer_norm(width)
        self.memory_names = tuple(f"scale{stage.scale}.held" for stage in hierarchy.stages[:-1])

    def initial_state(self, batch_size: int) -> CoreState:
        """Return zeros."""
        kept = [module for module in self.modules() if isinstance(module, Recent)]
        tick = torch.zeros(batch_size, dtype=torch.int64, device=self.slot.device)
        rows = {x.name: self.zeros(batch_size, x.size, self.num_outputs, x.channels) for x in kept}
        return {"tick": tick, **rows}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Run all ticks at once, for any phases and episode starts; see `TemporalCore.forward`."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        ticks = _tick_numbers(state["tick"], tokens.shape[1], episode_start)
        count = torch.full_like(state["tick"], tokens.shape[1])
        elements = Elements(ticks, count, ticks[:, -1], regular=episode_start is None)
        carried = Carried(state)
        x = self.scales(self.read_all(tokens) + self.slot, elements, carried)
        carried.after["tick"] = self._bounded(ticks[:, -1] + 1)
        return self.norm(x), {name: carried.after[name] for name in state}

    def _bounded(self, tick: Tensor) -> Tensor:
        """Bound a count of ticks: once all windows are full, only its phase matters."""
        return torch.where(tick < self.full, tick, self.full + tick % self.period)


class Scale(nn.Module):
    """The layers of one scale, with the coarser scales between the first and the second half."""

    def __init__(
        self,
        before: list[CarriedAttention],
        valley: Valley | None,
        after: list[CarriedAttention],
        window: int,
    ) -> None:
        super().__init__()
        self.before, self.after = nn.ModuleList(before), nn.ModuleList(after)
        self.valley, self.window = valley, window

    def forward(self, x: Tensor, elements: Elements, carried: Carried) -> Tensor:
        """Map x, (B, E, r, D) of `elements`, to the same shape."""
        past = self.window - 1
        reach = Reach(self.window, x.shape[2])
        sight = reach.sight(past + elements.place, elements.index, past + x.shape[1])
        for layer in self.before:
            x = layer(x, x, elements, sight, carried)
        if self.valley is not None:
            x = x + self.valley(x, elements, carried)
        for layer in self.after:
            x = layer(x, x, elements, sight, carried)
        return x


class Valley(nn.Module):
    """Shorten the sequence k times, run the next scale on it, and upsample."""

    def __init__(
        self, factor: int, shorten: Shortening, inner: Scale, upsample: Upsampling
    ) -> None:
        super().__init__()
        self.factor, self.shorten, self.inner, self.upsample = factor, shorten, inner, upsample

    def forward(self, x: Tensor, elements: Elements, carried: Carried) -> Tensor:
        """Map x, (B, E, r, D) of `elements`, to the same shape."""
        shortened = elements.shortened(self.factor)
        coarse = self.shorten(x, elements, shortened, carried)
        coarse = self.inner(coarse, shortened.elements, carried)
        out: Tensor = self.upsample(x, coarse, shortened, carried)
        return out


def build_scales(
    stages: tuple[Stage, ...], config: HourglassConfig, sizes: AttentionSizes
) -> Scale:
    """Build the first of `stages`, with all others within it."""
    outer, *within = stages
    name = f"scale{outer.scale}"

    def layers(where: str) -> list[CarriedAttention]:
        return [
            CarriedAttention(f"{name}.{where}{i}", sizes, kept=sizes.window - 1)
            for i in range(outer.num_layers)
        ]

    if not within:
        return Scale(layers("before"), None, [], sizes.window)
    factor = within[0].scale // outer.scale
    shortening, pooling = SHORTENINGS[config.pooling]
    upsampling, spread = UPSAMPLINGS[config.upsampling]
    valley = Valley(
        factor,
        shortening(name, factor, pooling(sizes.width, factor), sizes),
        build_scales(stages[1:], config, sizes),
        upsampling(name, factor, spread(sizes.width, factor), sizes),
    )
    return Scale(layers("before"), valley, layers("after"), sizes.window)


def _tick_numbers(before: Tensor, num_ticks: int, episode_start: Tensor | None) -> Tensor:
    """Return the number of ticks of the episode before each tick of a window, (B, T).

    before: (B,) int64, the ticks of the episode before the window.
    """
    tick = torch.arange(num_ticks, device=before.device)
    numbers = before[:, None] + tick
    if episode_start is None:
        return numbers
    began = torch.where(episode_start, tick, -1).cummax(dim=1).values
    return torch.where(began >= 0, tick - began, numbers)
