"""Temporal Latent Bottleneck (Didolkar et al. 2022): a fast Transformer within chunks of ticks, and slow latents.

Within a chunk of K ticks each tick attends to those before it and to N latents; when the chunk is full, the latents
attend to it and it is dropped (eq. 1 to 4). So what is older than the chunk reaches a tick through the latents
alone, and the state is bounded. Where the paper is silent or slips: pieces are *of length* K, the cross-attention
after the R-th, 2R-th, … layer has an index of its own, attention within a chunk is causal, since a tick of control
has no future, and latents and positions start distinct, at scale 1: slots that start identical stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore
from ttm.policy.cores.temporal_core import CoreState, reset_where
from ttm.policy.cores.tlb.window_pieces import WindowPieces, pick
from ttm.policy.errors import UserError
from ttm.policy.layers.attention_block import AttentionBlock
from ttm.policy.layers.token_learner import LAYER_NORM_EPS


@dataclass(frozen=True)
class TemporalLatentBottleneckConfig(SequenceConfig):
    """The paper's N, K, R and L (`num_layers`). `UserError` for a size below one, and for R above L."""

    num_latents: int = 16
    """N, vectors that carry what is older than the chunk."""
    chunk_size: int = 4
    """K, ticks after which the latents change. Training windows must be longer, or the latents learn nothing."""
    cross_every: int = 1
    """R: after every R-th layer of self-attention the tick attends to the latents."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the MLP that follows each attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_every > self.num_layers:
            raise UserError(
                f"cross_every is {self.cross_every} with {self.num_layers} layers, so that no tick would see the "
                f"latents; give a cross_every of {self.num_layers} or less, or more layers"
            )

    def build(self, width: int, num_inputs: int) -> TemporalLatentBottleneck:
        """See `CoreConfig`. `UserError` if the heads do not share the width evenly."""
        return TemporalLatentBottleneck(width, num_inputs, self)


class TemporalLatentBottleneck(SequenceCore):
    """Tokens of a tick see each other, the earlier ticks of their chunk, and the latents.

    Its state, with r tokens a tick, L layers of self-attention and C = floor(L / R) of cross-attention:
    "latents" (B, N, D); "latent_keys" and "latent_values" (B, C, N, D), which follow from them and are kept because
    they change but once a chunk; "keys" and "values" (B, L, K, r, D) of the chunk's ticks so far and "rows"
    (B, K, r, D), what the top layer made of them, zeros for ticks to come; "phase" (B,) int64, how many there are.
    That is N D + 2 K D L + K D + 2 N D L / R floats at r = 1, and as much for the chunk again for every further
    token, however long the episode. Every tick costs the same: the latents' new values are computed at each, and
    taken at a chunk's end.

    Each update adds to the latents (eq. 4), so that their norms grow with the number of chunks, to a hundredfold in
    3,000 ticks of one policy. Whatever reads them normalises them first, and its actions did not get worse; but the
    older the latents are, the less a chunk changes them.
    """

    memory_names = ("latents",)

    def __init__(self, width: int, num_inputs: int, config: TemporalLatentBottleneckConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.chunk_size, self.cross_every = config.chunk_size, config.cross_every

        def block() -> AttentionBlock:
            return AttentionBlock(
                width, config.num_heads, config.mlp_size, "the Temporal Latent Bottleneck"
            )

        self.position = nn.Parameter(torch.randn(config.chunk_size, config.process_size, width))
        self.initial_latents = nn.Parameter(torch.randn(config.num_latents, width))
        self.layers = _list(block() for _ in range(config.num_layers))
        self.crossings = _list(block() for _ in range(config.num_layers // config.cross_every))
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.update = block()

    def initial_state(self, batch_size: int) -> CoreState:
        """The learned latents, and an empty chunk."""
        latents = self.initial_latents.unsqueeze(0)
        known = {"latents": latents, **self._look_at(latents)}
        chunk, width = self.position.shape[:-1], self.position.shape[-1]  # chunk: (K, r)
        return {
            **{
                name: value.repeat(batch_size, *[1] * (value.dim() - 1))
                for name, value in known.items()
            },
            "keys": self.zeros(batch_size, len(self.layers), *chunk, width),
            "values": self.zeros(batch_size, len(self.layers), *chunk, width),
            "rows": self.zeros(batch_size, *chunk, width),
            "phase": torch.zeros(batch_size, dtype=torch.int64, device=latents.device),
        }

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. A chunk's last tick changes the latents after its output."""
        one = torch.ones_like(state["phase"])
        outputs, state = self._part_of_chunk(self.read(tokens).unsqueeze(1), one, state)
        return outputs.squeeze(1), state

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. All ticks of a chunk at once, chunk after chunk."""
        initial = self.initial_state(tokens.shape[0])
        state = initial if state is None else state
        # A trainer may have changed the weights since the state was made.
        state = {**state, **self._look_at(state["latents"])}
        pieces = WindowPieces(state["phase"], tokens.shape[1], self.chunk_size, episode_start)
        whole, outputs = WholeChunk(self.chunk_size, tokens.device), []
        for piece, read in zip(pieces, pieces.cut(self.read_all(tokens)), strict=True):
            if piece.any_begins:
                state = reset_where(piece.begins_episode, state, initial)
            if piece.all_whole:
                output, state = self._within_chunk(read, whole, state)
                state = self._ended(state)
            else:
                output, state = self._part_of_chunk(read, piece.count, state)
            outputs.append(output)
        return pieces.in_order(outputs), state

    def _part_of_chunk(
        self, tokens: Tensor, count: Tensor, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """S ticks that no chunk's end divides. tokens: (B, S, r, D); count: (B,), those after it are not remembered."""
        chunk = ChunkPlaces(state["phase"], count, tokens.shape[1], self.chunk_size)
        outputs, state = self._within_chunk(tokens, chunk, state)
        return outputs, reset_where(state["phase"] == self.chunk_size, state, self._ended(state))

    def _within_chunk(
        self, tokens: Tensor, chunk: ChunkPlaces | WholeChunk, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """tokens: (B, S, r, D), whose places `chunk` knows. It may be full then, and has not ended yet."""
        mask = chunk.visible(self.num_outputs)
        x = (tokens + self.position[chunk.ticks]).flatten(1, 2)  # (B, S * r, D)
        keys, values = [], []
        for number, layer in enumerate(self.layers, start=1):
            new = (part.reshape(tokens.shape) for part in layer.keys_values(x))
            old = (state[name][:, number - 1] for name in ("keys", "values"))
            seen = [chunk.put(*pair) for pair in zip(old, new, strict=True)]  # each (B, K, r, D)
            x = layer(x, *(part.flatten(1, 2) for part in seen), mask)
            keys.append(seen[0])
            values.append(seen[1])
            if number % self.cross_every == 0:
                index = number // self.cross_every - 1
                x = self.crossings[index](
                    x, *(state[name][:, index] for name in ("latent_keys", "latent_values"))
                )
        rows = x.view_as(tokens)
        grown = {"keys": torch.stack(keys, dim=1), "values": torch.stack(values, dim=1)}
        grown["rows"] = chunk.put(state["rows"], rows)
        return self.norm(rows), {**state, **grown, "phase": state["phase"] + chunk.count}

    def _ended(self, state: CoreState) -> CoreState:
        """The latents I attend to the full chunk's rows X, I + Attention(LN I; LN X), and the chunk is dropped."""
        rows = state["rows"].flatten(1, 2)  # (B, K * r, D)
        latents = self.update(state["latents"], *self.update.keys_values(rows))
        empty = {
            name: torch.zeros_like(state[name]) for name in ("keys", "values", "rows", "phase")
        }
        return {"latents": latents, **self._look_at(latents), **empty}

    def _look_at(self, latents: Tensor) -> CoreState:
        """latents: (B, N, D) -> their keys and values for all layers of cross-attention, (B, C, N, D)."""
        pairs = [crossing.keys_values(latents) for crossing in self.crossings]
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return {"latent_keys": keys, "latent_values": values}


def _list(blocks: Iterable[AttentionBlock]) -> Sequence[AttentionBlock]:
    """A `ModuleList`, which does not say what is in it."""
    return cast(Sequence[AttentionBlock], nn.ModuleList(blocks))


class ChunkPlaces:
    """Where S new ticks belong in a chunk that has K places, of which `phase` are taken."""

    def __init__(self, phase: Tensor, count: Tensor, num_ticks: int, chunk_size: int) -> None:
        """phase, count: (B,) int64; only the first `count` of the S ticks are put anywhere."""
        place = torch.arange(chunk_size, device=phase.device)
        new = phase[:, None] + torch.arange(num_ticks, device=phase.device)
        self.ticks = new.clamp(max=chunk_size - 1)  # (B, S), the place of each new tick
        self.count = count
        self._seen = place <= new[..., None]  # (B, S, K)
        source = place - phase[:, None]  # (B, K), the new tick for each place
        self._fresh = ((source >= 0) & (source < count[:, None]))[..., None, None]
        self._source = source.clamp(0, num_ticks - 1)

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        """old: (B, K, r, D), new: (B, S, r, D) -> (B, K, r, D), a new tensor."""
        return torch.where(self._fresh, pick(new, self._source), old)

    def visible(self, tokens: int) -> Tensor:
        """(B, 1, S * r, K * r) bool: a tick's r tokens see each other, and the chunk's ticks before them."""
        return _by_token(self._seen, tokens)


class WholeChunk:
    """All K ticks of a chunk of which no place is taken: `ChunkPlaces` then, and cheaper."""

    ticks = slice(None)

    def __init__(self, chunk_size: int, device: torch.device) -> None:
        self.count = chunk_size
        self._seen = torch.ones(1, chunk_size, chunk_size, dtype=torch.bool, device=device).tril()

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        """old, new: (B, K, r, D) -> new."""
        return new

    def visible(self, tokens: int) -> Tensor:
        """(1, 1, K * r, K * r) bool: see `ChunkPlaces`."""
        return _by_token(self._seen, tokens)


def _by_token(seen: Tensor, tokens: int) -> Tensor:
    """seen: (B or 1, S, K), of ticks -> (B or 1, 1, S * r, K * r), of their r tokens each."""
    return seen.repeat_interleave(tokens, 1).repeat_interleave(tokens, 2).unsqueeze(1)
