"""Transformers as temporal cores: causal with a key-value cache, recurrent, and over stacked frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.attention import (
    Rotation,
    TransformerEncoder,
    head_size,
    initialize_projections,
    merge_heads,
    rotate,
    split_heads,
    waves,
)
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.sequence import (
    SequenceConfig,
    SequenceCore,
    WindowedConfig,
    WindowedCore,
    episode_numbers,
)
from ttm.policy.errors import UserError
from ttm.policy.layers import Mlp, layer_norm


@dataclass(frozen=True)
class CausalTransformerConfig(SequenceConfig):
    """The sizes of the Transformer and of its window."""

    window: int = 8
    """Ticks that a token attends to, its own included. Equals the default of `ttm train --window`."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the blocks' MLPs."""

    def build(self, width: int, num_inputs: int) -> CausalTransformer:
        """See `CoreConfig.build`. Each head must have the same, even number of channels."""
        return CausalTransformer(width, num_inputs, self)


class CausalTransformer(SequenceCore):
    """The tokens of a tick attend to each other and to the `window` - 1 ticks before, under a causal mask.

    Positions are ticks, by rotary embedding (RoFormer, Su et al. 2021), so that attention depends on
    the age of a key alone. The cache holds keys before their rotation, so the state needs no count of
    ticks. A cached key has seen the window before its own tick: L layers see L (window - 1) ticks back.

    The state holds "keys" and "values" of every layer, (B, L, (window - 1) * r, D), oldest tick
    first, and "valid", (B, window - 1): 1 for a tick of this episode, 0 for one before its start.
    """

    def __init__(self, width: int, num_inputs: int, config: CausalTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.head_size = _even_head_size(width, config.num_heads)
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        self.blocks = nn.ModuleList(
            CausalBlock(width, config.num_heads, config.mlp_size) for _ in range(config.num_layers)
        )
        self.norm = layer_norm(width)

    def initial_state(self, batch_size: int) -> CoreState:
        """Return an empty window: zeros, none of them valid."""
        return self.empty_cache(batch_size, self.window - 1)

    def empty_cache(self, batch_size: int, ticks: int = 0) -> CoreState:
        """Return a state of any number of ticks for `extend`, none of them valid."""
        shape = (batch_size, len(self.blocks), ticks * self.num_outputs, self.width)
        return {
            "keys": self.zeros(*shape),
            "values": self.zeros(*shape),
            "valid": self.zeros(batch_size, ticks),
        }

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Run all ticks at once, under a mask; see `TemporalCore.forward`."""
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
        """Run T ticks after a cache of P ticks, and drop nothing from the cache.

        tokens: (B, T, N, D); episode_start: (B, T) bool; window: None to attend to all ticks
        before, which makes the cost grow. Returns (B, T, r, D) and the cache of P + T ticks.
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
        """Return the rotation of all tokens, old and new, in the type of `like`.

        Ticks are counted from the first new one. Returns two tensors ((P + T) * r, hs / 2).
        """
        tick = torch.arange(-past, ticks, device=like.device)
        cosine, sine = waves(tick.repeat_interleave(self.num_outputs), self.head_size)
        return cosine.to(like.dtype), sine.to(like.dtype)

    def _without_other_episodes(self, cache: CoreState) -> CoreState:
        """Set to zero what is not valid, as single steps do."""
        of_tokens = cache["valid"].repeat_interleave(self.num_outputs, dim=1)[:, None, :, None]
        kept = {name: torch.where(of_tokens > 0, cache[name], 0) for name in ("keys", "values")}
        return {**kept, "valid": cache["valid"]}


class CausalBlock(nn.Module):
    """Compute x + Attention(LN x), then x + MLP(LN x), where attention also sees a cache."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, _even_head_size(width, num_heads)
        self.attention_norm = layer_norm(width)
        self.qkv = nn.Linear(width, 3 * width)  # one matrix product for all three
        self.out = nn.Linear(width, width)
        initialize_projections(self.qkv, self.out)
        self.mlp_norm = layer_norm(width)
        self.mlp = Mlp(width, mlp_size, width)

    def forward(
        self, x: Tensor, old_keys: Tensor, old_values: Tensor, rotation: Rotation, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the block on new tokens.

        x: (B, S, D); old keys and values: (B, P, D); mask: (B, 1, S, P + S) bool, True where a
        token sees a key. Returns (B, S, D), and keys and values (B, P + S, D) before rotation.
        """
        query, key, value = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        keys, values = torch.cat([old_keys, key], dim=1), torch.cat([old_values, value], dim=1)
        past = old_keys.shape[1]
        cosine, sine = rotation
        mixed = F.scaled_dot_product_attention(
            rotate(split_heads(query, self.num_heads), (cosine[past:], sine[past:])),
            rotate(split_heads(keys, self.num_heads), rotation),
            split_heads(values, self.num_heads),
            attn_mask=mask,
        )
        x = x + self.out(merge_heads(mixed))
        x = x + self.mlp(self.mlp_norm(x))
        return x, keys, values


def _visible(valid: Tensor, ticks: int, episode_start: Tensor | None, window: int | None) -> Tensor:
    """Return which ticks each new tick sees, by window and episode.

    valid: (B, P) of the cache. Returns (B, T, P + T) bool.
    """
    past = valid.shape[1]
    tick = torch.arange(past + ticks, device=valid.device)
    age = tick[past:, None] - tick  # (T, P + T)
    near = age >= 0 if window is None else (age >= 0) & (age < window)
    visible = near & F.pad(valid > 0, (0, ticks), value=True).unsqueeze(1)
    if episode_start is None:
        return visible
    number = episode_numbers(episode_start, past)
    return visible & (number[:, past:, None] == number[:, None])


def _even_head_size(width: int, num_heads: int) -> int:
    """Return the channels of a head, which must be even: rotary embedding rotates pairs."""
    size = head_size(width, num_heads, "the causal Transformer")
    if size % 2:
        raise UserError(
            f"the causal Transformer's {num_heads} heads have {size} of {width} channels each, an odd "
            f"number; give a num_heads with which it is even"
        )
    return size


@dataclass(frozen=True)
class RecurrentTransformerConfig(SequenceConfig):
    """The sizes of the encoder and of the state.

    The model of the paper's table 2, of 0.410 GFLOPs, has a memory_size of 16.
    """

    memory_size: int = 16
    """m, state tokens."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the encoder's MLPs."""

    def build(self, width: int, num_inputs: int) -> RecurrentTransformer:
        """See `CoreConfig.build`. `num_heads` must divide `width`."""
        return RecurrentTransformer(width, num_inputs, self)


class RecurrentTransformer(SequenceCore):
    """Map [state ‖ input] to [new state ‖ output] by an encoder.

    This is the model of that name in table 2 of the TTM paper (Ryoo et al. 2022). Block-Recurrent
    Transformers (Hutchins et al. 2022) and the Recurrent Memory Transformer (Bulatov et al. 2022) carry
    tokens on in the same way.

    The state is {"memory": (B, m, D)}. The encoder ends with a LayerNorm, so the norm of the state
    does not grow with the length of the episode.
    """

    def __init__(self, width: int, num_inputs: int, config: RecurrentTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.memory_size = config.memory_size
        # Scale 1 is that of all later states, which the encoder's last LayerNorm returns.
        self.initial_memory = nn.Parameter(torch.randn(config.memory_size, width))
        self.encoder = TransformerEncoder(
            width,
            config.memory_size + config.process_size,
            config.num_layers,
            config.num_heads,
            config.mlp_size,
        )

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the learned tokens."""
        return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore.step`."""
        joined = torch.cat([state["memory"], self.read(tokens)], dim=1)  # (B, m + r, D)
        joined = self.encoder(joined)
        return joined[:, self.memory_size :], {"memory": joined[:, : self.memory_size]}


@dataclass(frozen=True)
class FrameStackingConfig(WindowedConfig):
    """A Transformer encoder over the tokens of the last ticks, as RT-1 has over 6 images: its sizes."""

    num_heads: int = 4

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig.build`. `num_heads` must divide `width`."""
        encoder = TransformerEncoder(
            width, self.num_tokens, self.num_layers, self.num_heads, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, encoder)
