"""The options of `ttm bench opening`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least, require_at_most
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class OpeningOptions:
    """How large the data set is, and how much of it is trained on."""

    episodes: int = 20_000
    """Episodes, each in a file of its own, and again in --merged files."""
    merged: int = 10
    """Files that hold the same episodes together, one or more each."""
    batches: int = 2_000
    """Batches of 16 windows that a training takes after the second opening, from files."""
    folder: Path | None = None
    """Where the data set is written for the time of the measurement; by default where temporary files
    lie. 20,000 episodes take 2 GB."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "episodes", "merged"))
        require_at_most(self.episodes, options(self, "merged"))
        require_at_least(20, options(self, "batches"))
        if self.folder is not None and not self.folder.is_dir():
            raise UserError(f"--folder {self.folder} is no folder; make it, or give another one")
