"""The options of `ttm study memory`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.training.study.minigrid.options import Effort, MinigridOptions

EFFORT = Effort(4_000, 800, 2_048)
"""The effort by default, the same for all levels."""


@dataclass(frozen=True)
class MemoryOptions(MinigridOptions):
    """What `ttm study memory` asks."""

    level: str = "MemoryS13"
    """MiniGrid's name: MemoryS and the side of the map, an odd number such as 7, 9, 11, 13 or 17. With
    Random after it (MemoryS13Random) every episode has a corridor of another length."""

    demonstrations: int | None = None
    """Episodes to learn from. Default: 4,000."""

    steps: int | None = None
    """Training steps of every core. Default: 800."""

    batch_ticks: int | None = None
    """Most ticks in a batch of whole episodes. Default: 2,048."""

    cache: Path = Path("runs/memory")
    """Folder in which demonstrations and results are kept."""

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return EFFORT
