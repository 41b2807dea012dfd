"""The options of `ttm bench record`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.policy.checks import options, require_above_0, require_at_least, require_at_most
from ttm.policy.errors import UserError

LEAST_WIDTH, LEAST_HEIGHT = 320, 16
"""As in `ttm_policy.sensors.numbered_frames`: smaller frames have no room for their number."""


@dataclass(frozen=True)
class BenchRecordOptions:
    """What is recorded, how fast and for how long."""

    seconds: float | None = None
    """How long is recorded; by default 20 s, and with --kills and --fill episodes of 1 s."""
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
    kills: int = 0
    """In place of the measurement: kill the recorder so many times, each at a random moment, while it
    records one episode after the other, and look what is left."""
    fill: bool = False
    """In place of the measurement: record until the disk of --out is full, and look what is left."""
    seed: int = 0
    """With --kills: seed of the moments."""
    out: Path | None = None
    """Folder in which to keep the episode; by default it is deleted."""
    json: Path | None = None
    """Also write all figures to this file."""

    @property
    def episode_s(self) -> float:
        """The length of an episode, in seconds."""
        if self.seconds is not None:
            return self.seconds
        return 1.0 if self.kills or self.fill else 20.0

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "rate_hz") | {"--seconds": self.episode_s})
        require_at_least(0, options(self, "kills"))
        if self.fill and (self.out is None or self.kills):
            raise UserError("--fill needs --out with a folder on a small disk, and no --kills")
        require_at_least(1, options(self, "cameras"))
        require_at_least(LEAST_WIDTH, options(self, "width"))
        require_at_least(LEAST_HEIGHT, options(self, "height"))
        require_at_least(0, options(self, "jpeg_quality"))
        require_at_most(MOST_JPEG_QUALITY, options(self, "jpeg_quality"))
