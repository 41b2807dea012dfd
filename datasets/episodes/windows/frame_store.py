"""The decoded camera frames of a whole data set, kept in memory where they fit."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.access.free_memory import available_memory_bytes
from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_file import OpenFiles
from ttm.datasets.frames import Frames
from ttm.datasets.progress import track
from ttm.datasets.windows.recent_frames import RecentFrames
from ttm.datasets.windows.resizing import resized_frames
from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec

MEMORY_PORTION = 0.5
"""The portion of the free memory that `cache="auto"` and `FrameStore.recent` may fill with frames."""


class FrameStore:
    """Gives frames by their dataset tick, which counts the ticks of all episodes one after another.

    Frames have the sizes of `spec`. `cache` and `copies` are those of `WindowDataset`. Those that are
    not kept are read and decoded for each call, from files of which the last ones stay open.
    """

    def __init__(
        self,
        episodes: EpisodeDataset,
        spec: PolicySpec,
        cache: Literal["auto", "ram", "none"],
        copies: int = 1,
    ) -> None:
        self._episodes = episodes
        self._spec = spec
        self._offsets = np.cumsum([0, *(episode.num_samples for episode in episodes)])
        self._device = torch.device("cpu")
        self._files = OpenFiles()
        self.tick_bytes = sum(camera.height * camera.width * 3 for camera in spec.cameras)
        """The size of the frames of one tick of all cameras."""
        needed = self.tick_bytes * episodes.num_ticks * copies
        self._cached: dict[str, Tensor] | None = None
        available = available_memory_bytes()
        if cache == "ram" and needed > available:
            raise UserError(
                f"the frames need {needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB are "
                "free here; take cache='none', or resize them"
            )
        if cache == "ram" or (cache == "auto" and needed <= MEMORY_PORTION * available):
            self._cached = self._decode_all()

    @property
    def in_memory(self) -> bool:
        """Whether all frames are kept in memory."""
        return self._cached is not None

    def to(self, device: torch.device | str) -> None:
        """Move the cached frames to `device`, and return frames there from now on."""
        self._device = torch.device(device)
        if self._cached is not None:
            self._cached = {name: frames.to(device) for name, frames in self._cached.items()}

    def close(self) -> None:
        """Close the files that are open; what is read afterwards opens them again."""
        self._files.close()

    def recent(self, ticks: int, processes: int) -> RecentFrames:
        """Return what keeps the frames of so many ticks, or of those for which there is memory.

        processes: those of this machine that keep so many each.
        """
        room = int(MEMORY_PORTION * available_memory_bytes()) // (processes * self.tick_bytes)
        return RecentFrames(min(ticks, room), min(1.0, room / ticks))

    def gather(self, rows: Tensor, recent: RecentFrames | None = None) -> dict[str, Tensor]:
        """Return the frames at dataset ticks (B, T), by camera: (B, T, H, W, 3) uint8.

        Each row of `rows` must lie within one episode. recent: gives and keeps frames that would be read
        again; None to read all from the files.
        """
        if self._cached is not None:
            ticks = rows.flatten()  # index_select copies whole frames, unlike frames[rows]
            return {
                name: frames.index_select(0, ticks).reshape(*rows.shape, *frames.shape[1:])
                for name, frames in self._cached.items()
            }
        wanted = rows.cpu().numpy()
        return {
            camera.name: torch.from_numpy(self._windows(camera, wanted, recent)).to(self._device)
            for camera in self._spec.cameras
        }

    def _windows(
        self, camera: CameraSpec, rows: npt.NDArray[np.int64], recent: RecentFrames | None
    ) -> Frames:
        """Return the frames at dataset ticks (B, T) that are in the files, (B, T, H, W, 3)."""
        found = np.empty((*rows.shape, camera.height, camera.width, 3), np.uint8)
        for row, window in zip(rows, found, strict=True):
            first, stop = int(row.min()), int(row.max()) + 1
            read = partial(self._read, camera)
            frames = (
                read(first, stop) if recent is None else recent.between(camera, first, stop, read)
            )
            np.take(frames, row - first, axis=0, out=window, mode="clip")
        return found

    def _read(self, camera: CameraSpec, first: int, stop: int) -> Frames:
        """Read the frames of dataset ticks `first` to `stop` - 1, of one episode, from its file."""
        index = int(np.searchsorted(self._offsets, first, side="right")) - 1
        start = int(self._offsets[index])
        frames = self._episodes[index].frames(
            camera.name, first - start, stop - start, files=self._files
        )
        return resized_frames(frames, camera)

    def _decode_all(self) -> dict[str, Tensor]:
        cached = {
            camera.name: torch.empty(
                (self._episodes.num_ticks, camera.height, camera.width, 3),
                dtype=torch.uint8,
            )
            for camera in self._spec.cameras
        }
        pairs = list(zip(self._episodes, self._offsets[:-1].tolist(), strict=True))
        for episode, start in track(pairs, "decoding frames"):
            for camera in self._spec.cameras:
                frames = resized_frames(episode.frames(camera.name, files=self._files), camera)
                cached[camera.name][start : start + len(frames)] = torch.from_numpy(frames)
        self._files.close()
        return cached
