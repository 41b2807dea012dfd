"""Causal Transformer over the last ticks, with a key-value cache as its state.

Pre-LayerNorm blocks as in `transformer`. Positions are ticks, by rotary embedding (RoFormer, Su et al. 2021):
what query and key make of them depends on the age of the key alone. Keys are cached as they are and rotated when
they are used, so the state needs no count of ticks and is bounded. Layers stack: a cached key has seen the window
before its own tick, so L layers see L (window - 1) ticks back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore, episode_numbers
from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS
from ttm.policy.layers.transformer import head_size

LONGEST_WAVE = 10_000
"""RoFormer's: the slowest channels turn by one radian in so many ticks."""

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of the angle for each token and pair of channels, (tokens, hs / 2) each."""


@dataclass(frozen=True)
class CausalTransformerConfig(SequenceConfig):
    """Sizes of the Transformer, and how far each layer looks back."""

    window: int = 8
    """Ticks that a token attends to: its own and those before. The default is that of `ttm train --window`."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the blocks' MLPs."""

    def build(self, width: int, num_inputs: int) -> CausalTransformer:
        """See `CoreConfig`. `UserError` if the heads do not share the width in even parts."""
        return CausalTransformer(width, num_inputs, self)


class CausalTransformer(SequenceCore):
    """Tokens of a tick see each other and the `window` - 1 ticks before.

    Its state: "keys" and "values" of every layer, (B, L, (window - 1) * r, D), oldest tick first, and
    "valid" (B, window - 1), 1 for a tick of this episode and 0 for one before its start.
    """

    def __init__(self, width: int, num_inputs: int, config: CausalTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.head_size = _rotated_head_size(width, config.num_heads)
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        self.blocks = nn.ModuleList(
            CausalBlock(width, config.num_heads, config.mlp_size) for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def initial_state(self, batch_size: int) -> CoreState:
        """An empty window: zeros, none of them valid."""
        return self.empty_cache(batch_size, self.window - 1)

    def empty_cache(self, batch_size: int, ticks: int = 0) -> CoreState:
        """A state of any number of ticks for `extend`, none of them valid."""
        shape = (batch_size, len(self.blocks), ticks * self.num_outputs, self.width)
        return {
            "keys": self.zeros(*shape),
            "values": self.zeros(*shape),
            "valid": self.zeros(batch_size, ticks),
        }

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. All ticks at once, under a mask."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        outputs, cache = self.extend(tokens, state, episode_start, self.window)
        forgotten = cache["valid"].shape[1] - (self.window - 1)
        keys, values = (
            cache[name][:, :, forgotten * self.num_outputs :] for name in ("keys", "values")
        )
        return outputs, {"keys": keys, "values": values, "valid": cache["valid"][:, forgotten:]}

    def extend(
        self,
        tokens: Tensor,
        cache: CoreState,
        episode_start: Tensor | None = None,
        window: int | None = None,
    ) -> tuple[Tensor, CoreState]:
        """T more ticks on top of a cache of any number P of ticks, of which none is dropped.

        tokens: (B, T, N, D); episode_start: (B, T) bool; window: None to see all ticks before, which is the
        Transformer whose cost grows. Returns (B, T, r, D) and the cache of P + T ticks.
        """
        ticks, past = tokens.shape[1], cache["valid"].shape[1]
        visible = _visible(cache["valid"], ticks, episode_start, window)  # (B, T, P + T)
        mask = visible.repeat_interleave(self.num_outputs, 1).repeat_interleave(self.num_outputs, 2)
        rotation = self._rotation(past, ticks, tokens)
        x = (self.read_all(tokens) + self.slot).flatten(1, 2)  # (B, T * r, D)
        keys, values = [], []
        for block, old_keys, old_values in zip(
            self.blocks, cache["keys"].unbind(1), cache["values"].unbind(1), strict=True
        ):
            x, all_keys, all_values = block(x, old_keys, old_values, rotation, mask.unsqueeze(1))
            keys.append(all_keys)
            values.append(all_values)
        grown = {"keys": torch.stack(keys, dim=1), "values": torch.stack(values, dim=1)}
        grown["valid"] = visible[:, -1].to(cache["valid"].dtype)
        if episode_start is not None:
            grown = self._without_other_episodes(grown)
        return self.norm(x).unflatten(1, (ticks, self.num_outputs)), grown

    def _rotation(self, past: int, ticks: int, like: Tensor) -> Rotation:
        """Of all tokens in the cache and after it, counted from the first new tick; in the type of `like`."""
        # In float64: a large angle in float32 would differ from tick to tick by more than the rest rounds.
        tick = torch.arange(-past, ticks, device=like.device, dtype=torch.float64)
        pairs = torch.arange(self.head_size // 2, device=like.device, dtype=torch.float64)
        angle = tick[:, None] * LONGEST_WAVE ** (-2 * pairs / self.head_size)  # (P + T, hs / 2)
        angle = angle.repeat_interleave(self.num_outputs, dim=0)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def _without_other_episodes(self, cache: CoreState) -> CoreState:
        """Zeros where nothing is valid, as stepping tick by tick leaves them."""
        of_tokens = cache["valid"].repeat_interleave(self.num_outputs, dim=1)[:, None, :, None]
        kept = {name: torch.where(of_tokens > 0, cache[name], 0) for name in ("keys", "values")}
        return {**kept, "valid": cache["valid"]}


class CausalBlock(nn.Module):
    """x + Attention(LN x), then x + MLP(LN x), where attention reaches into a cache."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, _rotated_head_size(width, num_heads)
        self.attention_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.qkv = nn.Linear(width, 3 * width)  # one matrix product for all three
        self.out = nn.Linear(width, width)
        for weight in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)
        self.mlp_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, mlp_size, width)

    def forward(
        self, x: Tensor, old_keys: Tensor, old_values: Tensor, rotation: Rotation, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, S, D), old keys and values: (B, P, D), mask: (B, 1, S, P + S) bool, True where S sees.

        Returns (B, S, D), and keys and values (B, P + S, D), not rotated.
        """
        query, key, value = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        keys, values = torch.cat([old_keys, key], dim=1), torch.cat([old_values, value], dim=1)
        past = old_keys.shape[1]
        mixed = F.scaled_dot_product_attention(
            rotate(self._heads(query), tuple(part[past:] for part in rotation)),
            rotate(self._heads(keys), rotation),
            self._heads(values),
            attn_mask=mask,
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        x = x + self.mlp(self.mlp_norm(x))
        return x, keys, values

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.head_size).transpose(
            1, 2
        )  # (B, nh, S, hs)


def rotate(x: Tensor, rotation: tuple[Tensor, ...]) -> Tensor:
    """x: (B, nh, S, hs), turned by the angle of each token; a channel is paired with the one hs / 2 further on."""
    cosine, sine = rotation
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)


def _visible(valid: Tensor, ticks: int, episode_start: Tensor | None, window: int | None) -> Tensor:
    """valid: (B, P) of the cache -> (B, T, P + T) bool: which ticks a new tick sees, by window and episode."""
    past = valid.shape[1]
    tick = torch.arange(past + ticks, device=valid.device)
    age = tick[past:, None] - tick  # (T, P + T)
    near = age >= 0 if window is None else (age >= 0) & (age < window)
    visible = near & F.pad(valid > 0, (0, ticks), value=True).unsqueeze(1)
    if episode_start is None:
        return visible
    number = episode_numbers(episode_start, past)
    return visible & (number[:, past:, None] == number[:, None])


def _rotated_head_size(width: int, num_heads: int) -> int:
    """Even, since rotary embedding turns pairs of channels."""
    size = head_size(width, num_heads, "the causal Transformer")
    if size % 2:
        raise UserError(
            f"the causal Transformer's {num_heads} heads have {size} of {width} channels each, an odd number; "
            f"give a num_heads with which it is even"
        )
    return size
