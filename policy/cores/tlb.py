"""Temporal Latent Bottleneck (Didolkar et al. 2022): a fast Transformer within chunks, slow latents.

Within a chunk of K ticks, each tick attends to the ticks before it and to N latents. When the chunk
is full, the latents attend to it and it is dropped (eq. 1 to 4). So ticks older than the chunk reach
the present through the latents alone, and the state is bounded.

Where the paper leaves it open, this module has causal attention within a chunk, a cross-attention of its
own after the R-th, 2R-th, ... layer, and latents and positions that start distinct, at scale 1, because
slots that start identical stay identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ttm.policy.cores.core import CoreState, reset_where
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore, episode_ticks
from ttm.policy.errors import UserError
from ttm.policy.layers import AttentionBlock, layer_norm, pick


@dataclass(frozen=True)
class TemporalLatentBottleneckConfig(SequenceConfig):
    """The paper's N, K, R and L (`num_layers`). R must not exceed L."""

    num_layers: int = 2
    num_latents: int = 16
    """N, vectors that carry information from before the chunk."""
    chunk_size: int = 4
    """K, the ticks between two updates of the latents. The latents learn from longer windows alone."""
    cross_every: int = 1
    """R: the tick attends to the latents after every R-th layer of self-attention."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the MLP that follows each attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_every > self.num_layers:
            most = f"give {self.num_layers} or less, or more layers"
            raise UserError(f"cross_every is {self.cross_every}, more than the layers; {most}")

    def build(self, width: int, num_inputs: int) -> TemporalLatentBottleneck:
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

    Every tick costs the same: it computes the new latents, and takes them over at the end of a chunk. Each
    update adds to the latents (eq. 4), so the older they are, the less a chunk changes them.
    """

    memory_names = ("latents",)

    def __init__(self, width: int, num_inputs: int, config: TemporalLatentBottleneckConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.chunk_size, self.cross_every = config.chunk_size, config.cross_every

        def block() -> AttentionBlock:
            sizes = config.num_heads, config.mlp_size
            return AttentionBlock(width, *sizes, "the Temporal Latent Bottleneck")

        self.position = nn.Parameter(torch.randn(config.chunk_size, config.process_size, width))
        self.initial_latents = nn.Parameter(torch.randn(config.num_latents, width))
        self.layers: Any = nn.ModuleList(block() for _ in range(config.num_layers))
        crossings = config.num_layers // config.cross_every
        self.crossings: Any = nn.ModuleList(block() for _ in range(crossings))
        self.norm = layer_norm(width)
        self.update = block()

    def initial_state(self, batch_size: int) -> CoreState:
        latents = self.initial_latents.unsqueeze(0)
        known = {"latents": latents, **self._look_at(latents)}
        rows = self.zeros(batch_size, *self.position.shape)  # (B, K, r, D)
        keys = self.zeros(batch_size, len(self.layers), *self.position.shape)
        phase = torch.zeros(batch_size, dtype=torch.int64, device=latents.device)
        repeated = {n: x.repeat(batch_size, *[1] * (x.dim() - 1)) for n, x in known.items()}
        return {**repeated, "keys": keys, "values": keys.clone(), "rows": rows, "phase": phase}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick. The last tick of a chunk changes the latents after its output."""
        outputs, state = self._part_of_chunk(self.read(tokens).unsqueeze(1), state)
        return outputs.squeeze(1), state

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Run all ticks of a chunk at once, if the chunks of all elements begin at the same ticks."""
        batch, ticks = tokens.shape[:2]
        initial = self.initial_state(batch)
        state = initial if state is None else state
        # A trainer may have changed the weights since the state was made.
        state = {**state, **self._look_at(state["latents"])}
        place = episode_ticks(state["phase"], ticks, episode_start) % self.chunk_size  # (B, T)
        if not bool((place == place[:1]).all()):
            return super().forward(tokens, state, episode_start)
        begins = (place[0] == 0).nonzero()[:, 0].tolist()
        whole, read, outputs = WholeChunk(self.chunk_size, tokens.device), self.read_all(tokens), []
        for first, end in pairwise(sorted({0, *begins, ticks})):
            if episode_start is not None and episode_start[:, first].any():
                state = reset_where(episode_start[:, first], state, initial)
            if end - first == self.chunk_size:
                output, state = self._within_chunk(read[:, first:end], whole, state)
                state = self._ended(state)
            else:
                output, state = self._part_of_chunk(read[:, first:end], state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def _part_of_chunk(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run S ticks, (B, S, r, D), of one chunk."""
        chunk = ChunkPlaces(state["phase"], tokens.shape[1], self.chunk_size)
        outputs, state = self._within_chunk(tokens, chunk, state)
        return outputs, reset_where(state["phase"] == self.chunk_size, state, self._ended(state))

    def _within_chunk(
        self, tokens: Tensor, chunk: ChunkPlaces | WholeChunk, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """Run S ticks, (B, S, r, D), into the places of `chunk`, without the update of the latents."""
        r = self.num_outputs
        mask = chunk.seen.repeat_interleave(r, 1).repeat_interleave(r, 2).unsqueeze(1)
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
                latents = state["latent_keys"][:, index], state["latent_values"][:, index]
                x = self.crossings[index](x, *latents)
        rows = x.view_as(tokens)
        grown = {"keys": torch.stack(keys, dim=1), "values": torch.stack(values, dim=1)}
        grown["rows"] = chunk.put(state["rows"], rows)
        return self.norm(rows), {**state, **grown, "phase": state["phase"] + chunk.count}

    def _ended(self, state: CoreState) -> CoreState:
        """Update the latents I by the rows X of the full chunk: I + Attention(LN I; LN X) (eq. 4)."""
        rows = state["rows"].flatten(1, 2)  # (B, K * r, D)
        latents = self.update(state["latents"], *self.update.keys_values(rows))
        chunk = ("keys", "values", "rows", "phase")
        empty = {name: torch.zeros_like(state[name]) for name in chunk}
        return {"latents": latents, **self._look_at(latents), **empty}

    def _look_at(self, latents: Tensor) -> CoreState:
        """Return keys and values, (B, C, N, D), of latents (B, N, D) for the C cross-attentions."""
        pairs = [crossing.keys_values(latents) for crossing in self.crossings]
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return {"latent_keys": keys, "latent_values": values}


class ChunkPlaces:
    """The places of S new ticks in a chunk of K places, of which the first `phase`, (B,), are taken."""

    def __init__(self, phase: Tensor, num_ticks: int, chunk_size: int) -> None:
        place = torch.arange(chunk_size, device=phase.device)
        new = phase[:, None] + torch.arange(num_ticks, device=phase.device)
        self.ticks = new.clamp(max=chunk_size - 1)  # (B, S), the place of each new tick
        self.count = num_ticks
        self.seen = place <= new[..., None]  # (B, S, K): a tick sees itself and the ticks before
        source = place - phase[:, None]  # (B, K), the new tick for each place
        self._fresh = ((source >= 0) & (source < num_ticks))[..., None, None]
        self._source = source.clamp(0, num_ticks - 1)

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.where(self._fresh, pick(new, self._source), old)


class WholeChunk:
    """A faster `ChunkPlaces` for all K ticks of a chunk that is still empty."""

    ticks = slice(None)

    def __init__(self, chunk_size: int, device: torch.device) -> None:
        self.count = chunk_size
        self.seen = torch.ones(1, chunk_size, chunk_size, dtype=torch.bool, device=device).tril()

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        return new
