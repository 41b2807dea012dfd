"""Temporal Latent Bottleneck (Didolkar et al. 2022): a fast Transformer within chunks, slow latents.

Within a chunk of K ticks, each tick attends to the ticks before it and to N latents. When the chunk
is full, the latents attend to it and it is dropped (eq. 1 to 4). So ticks older than the chunk reach
the present through the latents alone, and the state is bounded.

Where the paper leaves something open or contradicts itself, this module takes: pieces of length K;
an index of its own for the cross-attention after the R-th, 2R-th, ... layer; causal attention within
a chunk, since a control tick knows no future; latents and positions that start distinct, at scale 1,
because slots that start identical stay identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore
from ttm.policy.cores.temporal_core import CoreState, reset_where
from ttm.policy.cores.tlb.chunk_places import ChunkPlaces, WholeChunk
from ttm.policy.cores.tlb.window_pieces import WindowPieces
from ttm.policy.errors import UserError
from ttm.policy.layers.attention import AttentionBlock
from ttm.policy.layers.norms import layer_norm


@dataclass(frozen=True)
class TemporalLatentBottleneckConfig(SequenceConfig):
    """The paper's N, K, R and L (`num_layers`). R must not exceed L."""

    num_latents: int = 16
    """N, vectors that carry information from before the chunk."""
    chunk_size: int = 4
    """K, the ticks between two updates of the latents.

    Training windows must be longer, or else the latents learn nothing.
    """
    cross_every: int = 1
    """R: the tick attends to the latents after every R-th layer of self-attention."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the MLP that follows each attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_every > self.num_layers:
            raise UserError(
                f"cross_every is {self.cross_every} with {self.num_layers} layers, so that no tick would "
                f"see the latents; give a cross_every of {self.num_layers} or less, or more layers"
            )

    def build(self, width: int, num_inputs: int) -> TemporalLatentBottleneck:
        """See `CoreConfig.build`. `num_heads` must divide `width`."""
        return TemporalLatentBottleneck(width, num_inputs, self)


class TemporalLatentBottleneck(SequenceCore):
    """The tokens of a tick attend to each other, to the earlier ticks of the chunk, to the latents.

    With r tokens a tick, L layers of self-attention and C = floor(L / R) of cross-attention, the
    state holds:

    - "latents", (B, N, D);
    - "latent_keys" and "latent_values", (B, C, N, D), which are functions of the latents. They are
      kept because the latents change only once a chunk;
    - "keys" and "values", (B, L, K, r, D), of the ticks of the chunk so far, and "rows",
      (B, K, r, D), the outputs of the top layer for them. All are zero for ticks to come;
    - "phase", (B,) int64, the number of these ticks.

    With r = 1 these are N D + 2 K D L + K D + 2 N D L / R floats, and the part of the chunk grows
    in proportion to r. Every tick costs the same: it computes the new latents, and takes them over
    at the end of a chunk.

    Each update adds to the latents (eq. 4), so their norms grow with the number of chunks: about a
    hundredfold in 3,000 ticks of one policy. All readers normalise them first, and the actions of
    that policy did not get worse. But the older the latents are, the less a chunk changes them.
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
        self.norm = layer_norm(width)
        self.update = block()

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the learned latents and an empty chunk."""
        latents = self.initial_latents.unsqueeze(0)
        known = {"latents": latents, **self._look_at(latents)}
        chunk, width = self.position.shape[:-1], self.position.shape[-1]  # chunk: (K, r)
        known = {
            name: value.repeat(batch_size, *[1] * (value.dim() - 1))
            for name, value in known.items()
        }
        return {
            **known,
            "keys": self.zeros(batch_size, len(self.layers), *chunk, width),
            "values": self.zeros(batch_size, len(self.layers), *chunk, width),
            "rows": self.zeros(batch_size, *chunk, width),
            "phase": torch.zeros(batch_size, dtype=torch.int64, device=latents.device),
        }

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick. The last tick of a chunk changes the latents after its output."""
        one = torch.ones_like(state["phase"])
        outputs, state = self._part_of_chunk(self.read(tokens).unsqueeze(1), one, state)
        return outputs.squeeze(1), state

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Run all ticks of a chunk at once, chunk after chunk; see `TemporalCore.forward`."""
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
        """Run S ticks that lie within one chunk.

        tokens: (B, S, r, D); count: (B,) int64, the ticks of each element that are not padding.
        """
        chunk = ChunkPlaces(state["phase"], count, tokens.shape[1], self.chunk_size)
        outputs, state = self._within_chunk(tokens, chunk, state)
        return outputs, reset_where(state["phase"] == self.chunk_size, state, self._ended(state))

    def _within_chunk(
        self, tokens: Tensor, chunk: ChunkPlaces | WholeChunk, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """Run S ticks without the update of the latents, even if the chunk is full afterwards.

        tokens: (B, S, r, D), to be put into the places of `chunk`.
        """
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
        """Update the latents by the full chunk and empty it: I + Attention(LN I; LN X) (eq. 4).

        I are the latents and X the rows of the chunk.
        """
        rows = state["rows"].flatten(1, 2)  # (B, K * r, D)
        latents = self.update(state["latents"], *self.update.keys_values(rows))
        empty = {
            name: torch.zeros_like(state[name]) for name in ("keys", "values", "rows", "phase")
        }
        return {"latents": latents, **self._look_at(latents), **empty}

    def _look_at(self, latents: Tensor) -> CoreState:
        """Return keys and values of the latents for all layers of cross-attention.

        latents: (B, N, D). Returns (B, C, N, D) each.
        """
        pairs = [crossing.keys_values(latents) for crossing in self.crossings]
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return {"latent_keys": keys, "latent_values": values}


def _list(blocks: Iterable[AttentionBlock]) -> Sequence[AttentionBlock]:
    """Return a `ModuleList`, typed by what it holds."""
    return cast(Sequence[AttentionBlock], nn.ModuleList(blocks))
