"""The options of `ttm study chunks`, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.checks import options, require_at_least, require_some
from ttm.policy.errors import UserError
from ttm.training.common.core_names import CoreName
from ttm.training.study.symbol_options import SymbolStudyOptions


@dataclass(frozen=True)
class ChunksOptions(SymbolStudyOptions):
    """What `ttm study chunks` asks; its defaults take some minutes."""

    core: tuple[CoreName, ...] = ("hourglass", "ttm")
    """Cores to compare. Hourglass is trained once for each of --hierarchies."""
    hierarchies: tuple[str, ...] = ("1@1 1@3 1@1", "0@1 1@3 0@1")
    """Hierarchies of Hourglass, as layers@scale; each in quotes."""
    vocabularies: tuple[int, ...] = (2, 4, 26)
    """V, the number of letters."""
    steps: int = 600
    """Training steps of each model."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        super().check()
        require_some(options(self, "core", "hierarchies", "vocabularies"))
        require_at_least(1, options(self, "steps"))
        if min(self.vocabularies) < 2:
            raise UserError(
                f"--vocabularies has {min(self.vocabularies)}; give numbers of letters, 2 or more"
            )
