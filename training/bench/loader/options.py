"""The options of `ttm bench loader`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.policy.errors import UserError

Storage = Literal["ram", "raw", "gzip", "jpeg"]


@dataclass(frozen=True)
class FrameSize:
    """The size of stored frames, and that at which a network gets them, in pixels."""

    height: int
    width: int
    side: int

    @classmethod
    def parsed(cls, text: str) -> FrameSize:
        """Read a size such as 224, or 480x640:224. Raises `UserError` if it is none."""
        found = re.fullmatch(r"(\d+)(?:x(\d+))?(?::(\d+))?", text)
        numbers = [] if found is None else [int(part) for part in found.groups() if part]
        if found is None or min(numbers) < 1 or (found[2] and not found[3]):
            raise UserError(
                f"--sizes has '{text}'; give a side such as 224, or height x width : side of the "
                "network's frames, such as 480x640:224"
            )
        height = int(found[1])
        return cls(height, int(found[2] or height), int(found[3] or height))

    @property
    def text(self) -> str:
        """The size in words."""
        if (self.height, self.width) == (self.side, self.side):
            return str(self.side)
        return f"{self.height}x{self.width} to {self.side}"


@dataclass(frozen=True)
class LoaderOptions:
    """Which frames are loaded, from where, and by how many processes."""

    sizes: tuple[str, ...] = ("64", "224", "480x640:224")
    """Sizes of the stored frames in pixels: a side, or height x width : side of the network's frames,
    to which they are then resized."""
    storages: tuple[Storage, ...] = ("ram", "raw", "gzip", "jpeg")
    """Where the frames come from: decoded in memory, or files of raw, gzip-compressed or JPEG frames."""
    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of worker processes, as `ttm train --workers` has them."""
    batch_size: int = 16
    """Windows in a batch."""
    window: int = 8
    """Ticks in a window."""
    shuffle: int = 6
    """Batches from one window of a section to the next, as `ttm train --shuffle` has them for frames from
    files; 0 draws windows from all data. More take longer until the first sections are used up, which is
    not timed, and read as often afterwards."""
    seconds: float = 3.0
    """How long each case is timed."""
    step_ms: float = 100.0
    """How long a training step lasts besides, as on a GPU, for the share of it that is waited."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "sizes", "storages", "workers"))
        require_at_least(1, options(self, "batch_size", "window"))
        require_above_0(options(self, "seconds", "step_ms"))
        require_at_least(0, options(self, "shuffle"))
        for count in self.workers:
            require_at_least(0, {"--workers": count})
        for text in self.sizes:
            FrameSize.parsed(text)
