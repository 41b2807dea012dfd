"""The options of `ttm study memory`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least
from ttm.training.study.minigrid.options import Effort, MinigridOptions

EFFORT = Effort(4_000, 600, 1_024)
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
    """Training steps of every core. Default: 600."""

    batch_ticks: int | None = None
    """Most ticks in a batch of whole episodes. Default: 1,024."""

    recall: float = 1.0
    """Weight of a second loss without labels, for every core: its outputs must tell which kinds of
    tiles the agent has seen in the episode and does not see now. 0: the actions alone."""

    cache: Path = Path("runs/memory")
    """Folder in which demonstrations and results are kept."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range, or if minigrid is not installed."""
        super().check()
        require_at_least(0, options(self, "recall"))

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return EFFORT
