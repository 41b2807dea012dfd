"""Hourglass (Nawrot et al. 2021) for control: layers on a sequence of ticks that is shortened and brought to length.

A coarse element is made of k ticks, computed at every k-th one and held until the next, so that a layer at scale k
sees k times as far back for the same cost and state. The paper's model for language shifts the whole sequence by one
tick more, since there the output at t must not see the input at t; a robot's action may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ttm.policy.cores.hourglass.elements import Carried, Elements, Reach, Recent
from ttm.policy.cores.hourglass.hierarchy import Stage, parse_hierarchy
from ttm.policy.cores.hourglass.positioned_attention import (
    POSITIONS,
    AttentionSizes,
    CarriedAttention,
)
from ttm.policy.cores.hourglass.resampling import SHORTENINGS, UPSAMPLINGS, Shortening, Upsampling
from ttm.policy.cores.sequence_core import SMALLEST, SequenceCore
from ttm.policy.cores.temporal_core import CoreConfig, CoreState
from ttm.policy.errors import UserError
from ttm.policy.layers.token_learner import LAYER_NORM_EPS

CHOICES = {"pooling": SHORTENINGS, "upsampling": UPSAMPLINGS, "position": POSITIONS}
SIZES = ("process_size", "bottleneck", "window", "num_heads", "mlp_size")


@dataclass(frozen=True)
class HourglassConfig(CoreConfig):
    """Sizes and choices. `UserError` for a hierarchy or a choice that does not exist, and for sizes too small."""

    process_size: int = 8
    """r, tokens that a tick's inputs are summarised to, and as many output tokens for the action head.

    They are one element of the sequence: they see each other, and are shortened each with its like. With 1 the
    model is the paper's.
    """
    bottleneck: int = 64
    """Hidden width of the summariser's MLP."""
    hierarchy: str = "2@1 4@4 2@1"
    """Layers@scale from the input to the output; see `hierarchy.parse_hierarchy`."""
    pooling: Literal["average", "linear", "attention"] = "attention"
    upsampling: Literal["repeat", "linear", "attention"] = "attention"
    """The defaults are those of the authors' code."""
    position: Literal["relative", "rotary"] = "relative"
    """What attention knows of ages: Transformer-XL's way, which is the authors', or RoFormer's."""
    window: int = 8
    """Elements that each attention sees of its scale: 8 ticks at scale 1, 32 at scale 4."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the MLP that follows each attention."""

    def __post_init__(self) -> None:
        parse_hierarchy(self.hierarchy)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(
                    f"{name} is '{getattr(self, name)}'; give one of {', '.join(choices)}"
                )
        for name in SIZES:
            value, least = getattr(self, name), SMALLEST.get(name, 1)
            if value < least:
                raise UserError(f"{name} is {value}; give {least} or more")

    def build(self, width: int, num_inputs: int) -> Hourglass:
        """See `CoreConfig`. `UserError` if the heads do not share the width as they must."""
        return Hourglass(width, num_inputs, self)


class Hourglass(SequenceCore):
    """Layers around a valley of shorter sequences. Elements of its sequence are ticks, r tokens each.

    Its state: "tick" (B,) int64, ticks since the episode's start, which does not grow beyond some periods of the
    hierarchy; and at each scale s, of r tokens each,
    - "scale<s>.before<i>", "scale<s>.after<i>": keys and values of the layers, window - 1 elements of 2 D;
    - "scale<s>.rows": the last k - 1 elements, of D; "scale<s>.held": the newest coarse element, D;
    - "scale<s>.shorten": attention pooling's fine keys and values, window - 1 elements of 2 D;
    - "scale<s>.upsample": attention upsampling's coarse keys and values, window elements of 2 D.
    `2@1 4@4 2@1` at window W so has r D (16 (W - 1) + 4 + 2 (W - 1) + 2 W) floats, however long the episode. Every
    tick costs the same: coarse elements are computed at each, and kept where it is their turn. As its memory it shows
    the coarse elements held; a hierarchy of one scale has caches alone.
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
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.memory_names = tuple(f"scale{stage.scale}.held" for stage in hierarchy.stages[:-1])

    def initial_state(self, batch_size: int) -> CoreState:
        """Zeros."""
        kept = [module for module in self.modules() if isinstance(module, Recent)]
        tick = torch.zeros(batch_size, dtype=torch.int64, device=self.slot.device)
        rows = {x.name: self.zeros(batch_size, x.size, self.num_outputs, x.channels) for x in kept}
        return {"tick": tick, **rows}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. All ticks at once, whatever the phases and wherever episodes begin."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        ticks = _tick_numbers(state["tick"], tokens.shape[1], episode_start)
        count = torch.full_like(state["tick"], tokens.shape[1])
        elements = Elements(ticks, count, ticks[:, -1], regular=episode_start is None)
        carried = Carried(state)
        x = self.scales(self.read_all(tokens) + self.slot, elements, carried)
        carried.after["tick"] = self._bounded(ticks[:, -1] + 1)
        return self.norm(x), {name: carried.after[name] for name in state}

    def _bounded(self, tick: Tensor) -> Tensor:
        """From where all windows are full on, only the phase matters."""
        return torch.where(tick < self.full, tick, self.full + tick % self.period)


class Scale(nn.Module):
    """The layers of one scale, and the valley between those before and those after."""

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
        """x: (B, E, r, D) of `elements` -> the same."""
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
    """Shortens k times, runs the scale within, and upsamples."""

    def __init__(
        self, factor: int, shorten: Shortening, inner: Scale, upsample: Upsampling
    ) -> None:
        super().__init__()
        self.factor, self.shorten, self.inner, self.upsample = factor, shorten, inner, upsample

    def forward(self, x: Tensor, elements: Elements, carried: Carried) -> Tensor:
        """x: (B, E, r, D) of `elements` -> the same."""
        shortened = elements.shortened(self.factor)
        coarse = self.shorten(x, elements, shortened, carried)
        coarse = self.inner(coarse, shortened.elements, carried)
        out: Tensor = self.upsample(x, coarse, shortened, carried)
        return out


def build_scales(
    stages: tuple[Stage, ...], config: HourglassConfig, sizes: AttentionSizes
) -> Scale:
    """stages: from the outermost to be built."""
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
    """before: (B,) int64, ticks of the episode before the window -> (B, T), how many there were before each."""
    tick = torch.arange(num_ticks, device=before.device)
    numbers = before[:, None] + tick
    if episode_start is None:
        return numbers
    began = torch.where(episode_start, tick, -1).cummax(dim=1).values
    return torch.where(began >= 0, tick - began, numbers)
