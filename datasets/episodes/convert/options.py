"""The choices that a conversion offers. A choice that neither of its formats heeds is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tyro.conf import OmitArgPrefixes

from ttm.datasets.layout import require_jpeg_quality
from ttm.datasets.observations.choices import Choices
from ttm.policy.checks import require_above_0

ColourOrder = Literal["rgb", "bgr"]
VideoCodec = Literal["av1", "h264", "none"]


@dataclass(frozen=True)
class ConvertOptions:
    """Choices for one conversion. None is the format's own default."""

    rate_hz: float | None = None
    """The control rate of data that carry none."""
    instruction: str | None = None
    """The instruction of episodes that carry none."""
    colour_order: ColourOrder | None = None
    """The order of the channels that an ordinary image decoder gives for the files."""
    jpeg_quality: int | None = None
    """1 to 95 writes JPEGs; None writes frames as they are, and JPEGs as they were recorded."""
    video_codec: VideoCodec | None = None
    """How LeRobot's frames are written; "none" writes PNGs, which are lossless."""
    robot: str | None = None
    """The name of the robot of data that carry none."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def validate(self) -> None:
        """Raise `UserError` for a number that makes no sense."""
        require_above_0({"--rate-hz": self.rate_hz})
        require_jpeg_quality("--jpeg-quality", self.jpeg_quality)
