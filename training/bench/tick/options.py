"""The options of `ttm bench tick`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ttm.policy.checks import options, require_at_least

Timed = Literal["tiny", "base", "paper", "shipped"]
"""A preset, with random weights, or the policy that ships with the project."""
Part = Literal["unit", "flat", "whole", "cores"]


@dataclass(frozen=True)
class TickOptions:
    """What is timed, and how often."""

    parts: tuple[Part, ...] = ("unit", "flat", "whole", "cores")
    """What is timed."""
    threads: int = 2
    """CPU threads."""
    blocks: int = 30
    """Blocks of 10 calls for each contender that is timed in turns; the first two of a block do not count."""
    flat_ticks: int = 10_000
    """Ticks of the long episode of the unit and of the whole policy."""
    growing_ticks: int = 400
    """Ticks of the Transformer without a window. Its cache grows by 0.5 MB a tick, and its time with it."""
    period_ticks: int = 1024
    """Ticks of the episode in which tlb and hourglass are timed by themselves."""
    presets: tuple[Timed, ...] = ("tiny", "base", "paper", "shipped")
    """Presets of which a whole tick is timed, and the policy that ships."""
    whole_ticks: int = 300
    """Whole ticks with each precision of OpenVINO."""
    torch_ticks: int = 50
    """Whole ticks with the torch engine, for comparison."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a count that is too small."""
        require_at_least(1, options(self, "threads", "blocks", "whole_ticks", "torch_ticks"))
        # Four blocks of 10 ticks: both ends of an episode take turns in blocks.
        require_at_least(40, options(self, "flat_ticks", "growing_ticks", "period_ticks"))
