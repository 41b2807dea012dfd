"""The options of `ttm bench drift`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class DriftOptions:
    """Which policies run over which episodes, and for how long."""

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes."""
    checkpoint: tuple[Path, ...] = (Path("shipped"),)
    """One or more checkpoints; `shipped` is the policy that comes with the project."""
    out: Path = Path("runs/drift")
    """Folder for the chart and the figures."""
    ticks: int = 300
    """Length of a chain."""
    chains: int = 64
    """Number of chains; more of them make the intervals narrower."""
    bin: int = 20
    """Ticks in one row of the table and one point of the chart."""
    filter: str = "valid"
    """The mask of the episodes. Where there are no masks, every tenth episode is "valid"."""
    seed: int = 0
    """Seed of the order of the episodes; the same for all checkpoints."""
    threads: int = 0
    """CPU threads; 0 means one for each core that may be used."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "ticks", "chains", "bin"))
        if not self.checkpoint:
            raise UserError("no checkpoint is given; name one or more with --checkpoint")
