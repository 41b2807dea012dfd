"""The options of `ttm study babyai`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ttm.training.study.minigrid.options import Effort, MinigridOptions

EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "GoToLocal": Effort(50_000, 1_500, 1_024),
        "GoToSeq": Effort(20_000, 1_600, 2_048),
        "GoToSeqS5R2": Effort(40_000, 2_000, 2_048),
    }
)
"""Level -> effort by default."""
OTHER_LEVELS = Effort(10_000, 2_000, 2_048)
"""The default effort for levels that are not in `EFFORTS`."""


@dataclass(frozen=True)
class BabyaiOptions(MinigridOptions):
    """What `ttm study babyai` asks."""

    level: str = "GoToLocal"
    """BabyAI's name without BabyAI- and -v0. GoToSeq needs a memory, GoToLocal does not."""

    demonstrations: int | None = None
    """Episodes to learn from.
    Default: 50,000 for GoToLocal, 20,000 for GoToSeq, 40,000 for GoToSeqS5R2, else 10,000."""

    steps: int | None = None
    """Training steps of every core. Default: 1,500 for GoToLocal, 1,600 for GoToSeq, else 2,000."""

    batch_ticks: int | None = None
    """Most ticks in a batch. Default: 1,024 for GoToLocal, else 2,048."""

    cache: Path = Path("runs/babyai")
    """Folder in which demonstrations and results are kept."""

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return EFFORTS.get(self.level, OTHER_LEVELS)
