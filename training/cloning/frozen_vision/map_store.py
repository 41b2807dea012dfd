"""The feature maps of distinct frames, each computed and kept once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from ttm.policy.errors import UserError

DTYPE = torch.float16
"""The type of the kept maps.

It halves the memory of float32. On the shipped policy it changes the camera tokens by 1e-4 of their
spread, and the loss of a batch by 2e-5 of its value."""
FRAMES_AT_ONCE = 64


class MapStore:
    """The feature maps of the frames of one camera, under the instructions of their episodes."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # hash of frame and instruction -> row of `maps`
        self._parts: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_bytes(self) -> int:
        """The size of all maps in memory."""
        return sum(part.nbytes for part in self._parts)

    @property
    def maps(self) -> Tensor:
        """All maps, (U, h, w, C) of type `DTYPE`: a row for each distinct frame."""
        if len(self._parts) > 1:
            parts, self._parts = self._parts[::-1], []
            whole = parts[0].new_empty(len(self), *parts[0].shape[1:])
            start = 0
            while parts:  # each part is freed once it is copied
                part = parts.pop()
                whole[start : start + len(part)] = part
                start += len(part)
            self._parts = [whole]
        return self._parts[0]

    def rows(self, frames: Tensor, condition: bytes, see: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the row of each frame in `maps`, (n,) int64; add the frames that are new.

        frames: (n, 3, H, W) uint8. condition: stands for the instruction. see: maps m of the frames
        to (m, C, h, w). Raises `UserError` for a feature that `DTYPE` cannot hold.
        """
        keys = [
            hashlib.blake2b(frame.contiguous().numpy().tobytes() + condition, digest_size=16)
            for frame in frames
        ]
        rows, new = [], []
        for place, key in enumerate(key.digest() for key in keys):
            if key not in self._rows:
                self._rows[key] = len(self._rows)
                new.append(place)
            rows.append(self._rows[key])
        for places in torch.tensor(new, dtype=torch.int64).split(FRAMES_AT_ONCE):
            if len(places):
                self._parts.append(_kept(see(frames[places])))
        return torch.tensor(rows)


def _kept(maps: Tensor) -> Tensor:
    """Map (m, C, h, w) to (m, h, w, C) of type `DTYPE`, in the memory of the CPU."""
    kept = maps.permute(0, 2, 3, 1).to("cpu", DTYPE).contiguous()
    if not kept.isfinite().all():
        raise UserError(
            f"--freeze-vision keeps features as {DTYPE}, which one of them exceeds "
            f"({float(maps.abs().max()):g}); train without it, or begin with another --init"
        )
    return kept
