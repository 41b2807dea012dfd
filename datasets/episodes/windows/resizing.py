"""Frames of training windows at the size that a network takes, many at once."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate

from ttm.datasets.frames import Frames, resize_frame, whole_factors
from ttm.policy.spec import CameraSpec


def resized_frames(frames: Frames, camera: CameraSpec) -> Frames:
    """Return frames (n, H, W, 3) uint8 at the size of `camera`, as `resize_frame` resizes each.

    Torch interpolates bytes several times as fast as Pillow; single values may differ from those of
    `resize_frame` by 1 where it rounds otherwise.
    """
    size = (camera.height, camera.width)
    if frames.shape[1:3] == size or not len(frames):
        return frames.reshape(-1, *size, 3)
    if whole_factors(frames[0], *size):
        return np.stack([resize_frame(frame, *size) for frame in frames])
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)  # (n, 3, H, W) over the same memory
    resized = interpolate(planes, size, mode="bilinear", antialias=True)
    return resized.permute(0, 2, 3, 1).contiguous().numpy()
