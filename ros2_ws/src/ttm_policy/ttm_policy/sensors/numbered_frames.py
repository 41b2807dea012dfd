"""Frames that carry a number, which survives their compression as JPEGs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

BITS = 20
"""A camera of 30 Hz counts so far in 9 hours."""
BLOCK = 16
"""Each bit is a block of so many pixels squared, in the upper left corner: white is 1."""
LEAST_WIDTH, LEAST_HEIGHT = BITS * BLOCK, BLOCK
"""Smaller frames have no room for their number."""


def picture(height: int, width: int, seed: int) -> Frame:
    """Return a frame (H, W, 3) that compresses about as a camera's: coarse patches with some noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // BLOCK + 1, width // BLOCK + 1, 3))
    patches = coarse.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)[:height, :width]
    noisy = patches + random.normal(0, 4, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def write_number(frame: Frame, number: int) -> None:
    """Write a number below 2**`BITS` into a frame (H, W, 3) with room for it."""
    bits = (number >> np.arange(BITS)) & 1
    frame[:BLOCK, :LEAST_WIDTH] = (255 * bits).astype(np.uint8).repeat(BLOCK)[None, :, None]


def read_numbers(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the number of each frame. frames: (n, H, W, 3) -> (n,)."""
    middles = BLOCK // 2 + BLOCK * np.arange(BITS)
    bits = frames[:, BLOCK // 2, middles, 0] > 127  # (n, BITS)
    return (bits.astype(np.int64) << np.arange(BITS)).sum(axis=1)
