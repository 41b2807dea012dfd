"""The frames that were read last, at the size of a network, for windows that overlap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ttm.datasets.frames import Frames
from ttm.policy.spec import CameraSpec

RUN = 32
"""Ticks that are kept together or not at all, where there is no room for all."""


class RecentFrames:
    """Keeps the frames that were used last, up to a number for each camera.

    Memory is taken as frames come. For one thread at a time; a process that is forked has its own.
    """

    def __init__(self, ticks: int, portion: float = 1.0) -> None:
        """ticks: the number of frames of each camera to keep at most.

        portion: of all frames, those that are kept at all. Where there is room for a third of the frames
        that are needed again, to keep a third of them and the others not serves more of them than to
        keep all of them for a third of the time.
        """
        self.ticks = ticks
        self.portion = portion
        self._kept_of_all = int(portion * 2**32)
        self._cameras: dict[str, tuple[OrderedDict[int, int], Frames]] = {}

    def between(
        self, camera: CameraSpec, first: int, stop: int, read: Callable[[int, int], Frames]
    ) -> Frames:
        """Return the frames of dataset ticks `first` to `stop` - 1 of `camera`, (n, H, W, 3) uint8.

        read: returns those from a tick to another, which it is asked for if they are not kept.
        """
        slots, kept = self._of(camera)
        missing = [tick for tick in range(first, stop) if tick not in slots]
        if len(missing) == stop - first:
            found = read(first, stop)
        else:
            found = np.empty((stop - first, *kept.shape[1:]), np.uint8)
            for tick in range(first, stop):
                if tick in slots:
                    slots.move_to_end(tick)
                    found[tick - first] = kept[slots[tick]]
            for begin, end in _runs(missing):
                found[begin - first : end - first] = read(begin, end)
        for tick in filter(self._is_kept, missing):
            slot = len(slots) if len(slots) < self.ticks else slots.popitem(last=False)[1]
            kept[slot] = found[tick - first]
            slots[tick] = slot
        return found

    def _of(self, camera: CameraSpec) -> tuple[OrderedDict[int, int], Frames]:
        """Return what is kept of a camera: tick -> row, the longest unused first, and the rows."""
        if camera.name not in self._cameras:
            rows = np.empty((self.ticks, camera.height, camera.width, 3), np.uint8)
            self._cameras[camera.name] = OrderedDict(), rows
        return self._cameras[camera.name]

    def _is_kept(self, tick: int) -> bool:
        """Whether the run of a tick is among those that are kept, which are spread like random ones."""
        return self.ticks > 0 and (tick // RUN + 1) * 0x9E3779B1 % 2**32 < self._kept_of_all


def _runs(ticks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first tick of each run of consecutive ones, and the tick after its last."""
    begin = 0
    for place in range(1, len(ticks) + 1):
        if place == len(ticks) or ticks[place] != ticks[place - 1] + 1:
            yield ticks[begin], ticks[place - 1] + 1
            begin = place
