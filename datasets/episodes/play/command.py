"""The options of `ttm data play`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class DataPlayCommand:
    """Write an episode as a film in real time: its cameras, and below them what it did and felt.

    Each part of the action and each vector of proprioception has a chart over the ticks, in which a line
    marks the tick that is shown. A dashed line is what was executed in place of the action. With a name
    that ends in .rrd or .mcap, write it for the viewers of rerun or Foxglove instead.

    For example:
      ttm data play my_episodes/episode_00003.hdf5
      ttm data play week.hdf5 --demo demo_12 --out demo_12.webp
      ttm data play my_episodes/episode_00003.hdf5 --out episode.rrd
    """

    episode: Annotated[Positional[Path], arg(metavar="EPISODE")]
    """An HDF5 file."""

    demo: str | None = None
    """Which episode of the file, such as demo_3, if it has several."""

    out: Path | None = None
    """The film: .mp4 (H.264, which every browser plays), or .webp (a moving picture for pages); or .rrd
    for rerun, or .mcap for Foxglove. None takes the name of the episode with .mp4, in this folder."""

    def run(self) -> int:
        """Write the film and print its path; return the exit code."""
        from ttm.datasets.play.report import play_and_report

        return play_and_report(self.episode, self.demo, self.out)
