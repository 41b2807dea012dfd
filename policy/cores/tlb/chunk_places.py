"""Where new ticks belong in a chunk that is filled tick by tick, and what they see of it."""

from __future__ import annotations

import torch
from torch import Tensor

from ttm.policy.layers.gather import pick


class ChunkPlaces:
    """The places of S new ticks in a chunk of K places, of which the first `phase` are taken."""

    def __init__(self, phase: Tensor, count: Tensor, num_ticks: int, chunk_size: int) -> None:
        """phase and count: (B,) int64. Only the first `count` of the S ticks are put anywhere."""
        place = torch.arange(chunk_size, device=phase.device)
        new = phase[:, None] + torch.arange(num_ticks, device=phase.device)
        self.ticks = new.clamp(max=chunk_size - 1)  # (B, S), the place of each new tick
        self.count = count
        self._seen = place <= new[..., None]  # (B, S, K)
        source = place - phase[:, None]  # (B, K), the new tick for each place
        self._fresh = ((source >= 0) & (source < count[:, None]))[..., None, None]
        self._source = source.clamp(0, num_ticks - 1)

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the chunk `old`, (B, K, r, D), with the ticks `new`, (B, S, r, D), put into it."""
        return torch.where(self._fresh, pick(new, self._source), old)

    def visible(self, tokens: int) -> Tensor:
        """Return the mask (B, 1, S * r, K * r) bool, for r = `tokens` tokens a tick.

        The tokens of a tick see each other, and those of all earlier ticks of the chunk.
        """
        return _by_token(self._seen, tokens)


class WholeChunk:
    """A faster `ChunkPlaces` for all K ticks of a chunk that is still empty."""

    ticks = slice(None)

    def __init__(self, chunk_size: int, device: torch.device) -> None:
        self.count = chunk_size
        self._seen = torch.ones(1, chunk_size, chunk_size, dtype=torch.bool, device=device).tril()

    def put(self, old: Tensor, new: Tensor) -> Tensor:
        """Return `new`. Both are (B, K, r, D)."""
        return new

    def visible(self, tokens: int) -> Tensor:
        """Return the mask (1, 1, K * r, K * r) bool; see `ChunkPlaces.visible`."""
        return _by_token(self._seen, tokens)


def _by_token(seen: Tensor, tokens: int) -> Tensor:
    """Expand a mask over ticks, (B or 1, S, K), to one over their tokens, (B or 1, 1, S r, K r)."""
    return seen.repeat_interleave(tokens, 1).repeat_interleave(tokens, 2).unsqueeze(1)
