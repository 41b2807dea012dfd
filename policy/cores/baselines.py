"""The cores with which the TTM paper compares (Ryoo et al. 2022, table 2), and a causal Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState, reset_where
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore
from ttm.policy.errors import UserError
from ttm.policy.layers import (
    Mlp,
    MlpMixer,
    Rotation,
    TransformerEncoder,
    head_size,
    initialize_projections,
    layer_norm,
    merge_heads,
    rotate,
    split_heads,
    waves,
)


@dataclass(frozen=True)
class LstmConfig(SequenceConfig):
    """The sizes of the LSTM. Its hidden width is the width D of the tokens."""

    num_layers: int = 2

    def build(self, width: int, num_inputs: int) -> LstmCore:
        return LstmCore(width, num_inputs, self)


class LstmCore(SequenceCore):
    """An LSTM of L layers for each of the r token slots, with shared weights.

        i, f, g, o = W x + U h    c' = sigmoid(f) c + sigmoid(i) tanh(g)    h' = sigmoid(o) tanh(c')

    The LSTM is that with a forget gate (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
    The state is {"hidden", "cell"}, (B, L, r, D) each. A learned embedding tells the slots apart.
    """

    def __init__(self, width: int, num_inputs: int, config: LstmConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.state_shape = (config.num_layers, config.process_size, width)
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        self.norm = layer_norm(width)
        self.lstm = nn.LSTM(width, width, config.num_layers, batch_first=True)
        self.output_norm = layer_norm(width)
        for _, _, input_bias, _ in self.lstm.all_weights:
            # An LSTM that starts by keeping its cell learns over longer times (Jozefowicz et al. 2015).
            nn.init.ones_(input_bias.data[width : 2 * width])

    def initial_state(self, batch_size: int) -> CoreState:
        return {name: self.zeros(batch_size, *self.state_shape) for name in ("hidden", "cell")}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick by plain matrix products, which are faster than `nn.LSTM` for one tick."""
        x = self.norm(self.read(tokens) + self.slot)  # (B, r, D)
        hidden, cell = [], []
        before = state["hidden"].unbind(1), state["cell"].unbind(1)
        for weights, h, c in zip(self.lstm.all_weights, *before, strict=True):
            input_weight, hidden_weight, input_bias, hidden_bias = weights
            gates = F.linear(x, input_weight, input_bias) + F.linear(h, hidden_weight, hidden_bias)
            i, f, g, o = gates.chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            x = o.sigmoid() * c.tanh()
            hidden.append(x)
            cell.append(c)
        state = {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
        return self.output_norm(x), state

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Call `nn.LSTM` once for each stretch of ticks in which no episode starts."""
        batch, ticks = tokens.shape[:2]
        x = self.norm(self.read_all(tokens) + self.slot).transpose(1, 2).flatten(0, 1)
        initial = self.initial_state(batch)
        state = initial if state is None else state
        starts = [] if episode_start is None else episode_start.any(dim=0).nonzero()[:, 0].tolist()
        outputs = []
        for first, end in pairwise(sorted({0, *starts, ticks})):
            if episode_start is not None:
                state = reset_where(episode_start[:, first], state, initial)
            output, state = self._run(x[:, first:end], state)
            outputs.append(output)
        joined = torch.cat(outputs, dim=1).view(batch, self.num_outputs, ticks, -1)  # (B, r, T, D)
        return self.output_norm(joined.transpose(1, 2)), state

    def _run(self, x: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run `nn.LSTM` on x, (B * r, T, D). Returns outputs of that shape, and the new state."""
        in_autocast = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if in_autocast and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            # Autocast would ask for an LSTM in bfloat16, which this CPU does not have.
            with torch.autocast("cpu", enabled=False):
                return self._run(x.float(), {name: part.float() for name, part in state.items()})
        given = (state[name].transpose(0, 1).flatten(1, 2) for name in ("hidden", "cell"))
        output, made = self.lstm(x, tuple(part.contiguous() for part in given))  # (L, B * r, D)
        hidden, cell = (part.unflatten(1, (-1, self.num_outputs)).transpose(0, 1) for part in made)
        return output, {"hidden": hidden, "cell": cell}


@dataclass(frozen=True)
class RecurrentTransformerConfig(SequenceConfig):
    """The sizes of the encoder and of the state. The paper's table 2 has a memory_size of 16."""

    num_layers: int = 2
    memory_size: int = 16
    """m, state tokens."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the encoder's MLPs."""

    def build(self, width: int, num_inputs: int) -> RecurrentTransformer:
        return RecurrentTransformer(width, num_inputs, self)


class RecurrentTransformer(SequenceCore):
    """Map [state ‖ input] to [new state ‖ output] by an encoder. The state is {"memory": (B, m, D)}.

    Block-Recurrent Transformers (Hutchins et al. 2022) and the Recurrent Memory Transformer (Bulatov et
    al. 2022) carry tokens on in the same way. The encoder's last LayerNorm bounds the state.
    """

    def __init__(self, width: int, num_inputs: int, config: RecurrentTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.memory_size = config.memory_size
        # Scale 1 is that of all later states, which the encoder's last LayerNorm returns.
        self.initial_memory = nn.Parameter(torch.randn(config.memory_size, width))
        num_tokens = config.memory_size + config.process_size
        sizes = config.num_layers, config.num_heads, config.mlp_size
        self.encoder = TransformerEncoder(width, num_tokens, *sizes)

    def initial_state(self, batch_size: int) -> CoreState:
        return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        joined = self.encoder(torch.cat([state["memory"], self.read(tokens)], dim=1))
        return joined[:, self.memory_size :], {"memory": joined[:, : self.memory_size]}


@dataclass(frozen=True)
class WindowedConfig(SequenceConfig):
    """The sizes of the cores that see the last few ticks and carry nothing else: their window."""

    num_layers: int = 2
    window: int = 6
    """W, the ticks that the core sees, the newest included."""
    mlp_size: int = 512
    """Hidden width of the MLPs over channels."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens in a window."""
        return self.window * self.process_size


@dataclass(frozen=True)
class FrameStackingConfig(WindowedConfig):
    """A Transformer encoder over the tokens of the last ticks, as RT-1 has over 6 images."""

    num_heads: int = 4

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        sizes = self.num_tokens, self.num_layers, self.num_heads, self.mlp_size
        return WindowedCore(width, num_inputs, self, TransformerEncoder(width, *sizes))


@dataclass(frozen=True)
class TemporalMixerConfig(WindowedConfig):
    """An MLP-Mixer (Tolstikhin et al. 2021) over the tokens of the last ticks."""

    token_mixing_size: int = 128
    """Hidden width of the MLPs over tokens."""

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        sizes = self.num_tokens, self.num_layers, self.token_mixing_size, self.mlp_size
        return WindowedCore(width, num_inputs, self, MlpMixer(width, *sizes))


class WindowedCore(SequenceCore):
    """Process the summaries of the last W ticks, each with a learned embedding of its age.

    The outputs are the tokens of the newest tick. The state is {"frames": (B, W - 1, r, D)}: the summaries
    of the ticks before, oldest first, and zeros for ticks before the start of the episode.
    """

    def __init__(
        self, width: int, num_inputs: int, config: WindowedConfig, processor: nn.Module
    ) -> None:
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.age = nn.Parameter(torch.randn(config.window, 1, width) * 0.02)
        self.processor = processor

    def initial_state(self, batch_size: int) -> CoreState:
        return {"frames": self.zeros(batch_size, self.window - 1, self.num_outputs, self.width)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        frames = torch.cat([state["frames"], self.read(tokens).unsqueeze(1)], dim=1)  # (B, W, r, D)
        return self._process(frames), {"frames": frames[:, 1:]}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        state = self.initial_state(tokens.shape[0]) if state is None else state
        frames = torch.cat([state["frames"], self.read_all(tokens)], dim=1)  # (B, W - 1 + T, r, D)
        windows = frames.unfold(1, self.window, 1).movedim(-1, 2)  # (B, T, W, r, D)
        if episode_start is not None:
            number = _episode_numbers(episode_start, self.window - 1).unfold(1, self.window, 1)
            same = number == number[..., -1:]  # (B, T, W)
            windows = torch.where(same[..., None, None], windows, 0)
        outputs = self._process(windows.flatten(0, 1))
        return outputs.view(*tokens.shape[:2], *outputs.shape[1:]), {"frames": windows[:, -1, 1:]}

    def _process(self, frames: Tensor) -> Tensor:
        return self.processor((frames + self.age).flatten(1, 2))[:, -self.num_outputs :]


@dataclass(frozen=True)
class CausalTransformerConfig(SequenceConfig):
    """The sizes of the Transformer and of its window."""

    num_layers: int = 2
    window: int = 8
    """Ticks that a token attends to, its own included. Equals the default of `ttm train --window`."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the blocks' MLPs."""

    def build(self, width: int, num_inputs: int) -> CausalTransformer:
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
        """Raises `UserError` unless each head has the same, even number of channels."""
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.head_size = head_size(width, config.num_heads, "the causal Transformer")
        if self.head_size % 2:
            heads = f"{config.num_heads} heads have {self.head_size} channels each"
            raise UserError(f"{heads}; give a num_heads with an even number of channels")
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        sizes = width, config.num_heads, config.mlp_size
        self.blocks = nn.ModuleList(CausalBlock(*sizes) for _ in range(config.num_layers))
        self.norm = layer_norm(width)

    def initial_state(self, batch_size: int) -> CoreState:
        return self.empty_cache(batch_size, self.window - 1)

    def empty_cache(self, batch_size: int, ticks: int = 0) -> CoreState:
        """Return a state of any number of ticks for `extend`, none of them valid."""
        shape = (batch_size, len(self.blocks), ticks * self.num_outputs, self.width)
        cache = {name: self.zeros(*shape) for name in ("keys", "values")}
        return {**cache, "valid": self.zeros(batch_size, ticks)}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        state = self.initial_state(tokens.shape[0]) if state is None else state
        outputs, cache = self.extend(tokens, state, episode_start, self.window)
        forgotten = cache["valid"].shape[1] - (self.window - 1)
        first = forgotten * self.num_outputs
        kept = {name: cache[name][:, :, first:] for name in ("keys", "values")}
        return outputs, {**kept, "valid": cache["valid"][:, forgotten:]}

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
        (batch, ticks), past, r = tokens.shape[:2], cache["valid"].shape[1], self.num_outputs
        tick = torch.arange(-past, ticks, device=tokens.device)
        angles = waves(tick.repeat_interleave(r), self.head_size)
        rotation = angles[0].to(tokens.dtype), angles[1].to(tokens.dtype)
        visible = _visible(cache["valid"], ticks, episode_start, window)  # (B, T, P + T)
        mask = visible.repeat_interleave(r, 1).repeat_interleave(r, 2).unsqueeze(1)
        x = (self.read_all(tokens) + self.slot).flatten(1, 2)  # (B, T * r, D)
        keys, values = [], []
        before = cache["keys"].unbind(1), cache["values"].unbind(1)
        for block, old_keys, old_values in zip(self.blocks, *before, strict=True):
            x, all_keys, all_values = block(x, old_keys, old_values, rotation, mask)
            keys.append(all_keys)
            values.append(all_values)
        grown = {"keys": torch.stack(keys, dim=1), "values": torch.stack(values, dim=1)}
        valid = visible[:, -1].to(cache["valid"].dtype)
        if episode_start is not None:  # zeros in place of other episodes, as single steps have them
            of_tokens = valid.repeat_interleave(r, dim=1).view(batch, 1, -1, 1) > 0
            grown = {name: torch.where(of_tokens, value, 0) for name, value in grown.items()}
        return self.norm(x).unflatten(1, (ticks, r)), {**grown, "valid": valid}


class CausalBlock(nn.Module):
    """Compute x + Attention(LN x), then x + MLP(LN x), where attention also sees a cache."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
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
        return x + self.mlp(self.mlp_norm(x)), keys, values


def _visible(valid: Tensor, ticks: int, episode_start: Tensor | None, window: int | None) -> Tensor:
    """Return which ticks each new one sees, (B, T, P + T) bool, given the valid ones of a cache, (B, P)."""
    past = valid.shape[1]
    tick = torch.arange(past + ticks, device=valid.device)
    age = tick[past:, None] - tick  # (T, P + T)
    near = age >= 0 if window is None else (age >= 0) & (age < window)
    visible = near & F.pad(valid > 0, (0, ticks), value=True).unsqueeze(1)
    if episode_start is None:
        return visible
    number = _episode_numbers(episode_start, past)
    return visible & (number[:, past:, None] == number[:, None])


def _episode_numbers(episode_start: Tensor, past: int) -> Tensor:
    """Number the episodes of each element, (B, past + T). The `past` ticks of a state belong to 0."""
    return F.pad(episode_start.cumsum(dim=1), (past, 0))
