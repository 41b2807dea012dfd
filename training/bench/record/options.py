"""The options of `ttm bench record`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.policy.checks import options, require_above_0, require_at_least, require_at_most

LEAST_WIDTH, LEAST_HEIGHT = 320, 16
"""Smaller frames have no room for their number."""


@dataclass(frozen=True)
class BenchRecordOptions:
    """What is recorded, how fast and for how long."""

    seconds: float = 20.0
    """How long is recorded."""
    rate_hz: float = 30.0
    """Frames of each camera, and ticks, per second."""
    cameras: int = 2
    """The number of cameras."""
    width: int = 640
    """The width of their frames, in pixels."""
    height: int = 480
    """The height of their frames, in pixels."""
    jpeg_quality: int = 90
    """As in ttm record: the quality of stored JPEGs; 0 stores frames without loss."""
    out: Path | None = None
    """Folder in which to keep the episode; by default it is deleted."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "seconds", "rate_hz"))
        require_at_least(1, options(self, "cameras"))
        require_at_least(LEAST_WIDTH, options(self, "width"))
        require_at_least(LEAST_HEIGHT, options(self, "height"))
        require_at_least(0, options(self, "jpeg_quality"))
        require_at_most(MOST_JPEG_QUALITY, options(self, "jpeg_quality"))
