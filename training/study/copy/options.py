"""The options of `ttm study copy`, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.policy.errors import UserError
from ttm.training.common.core_names import CoreName
from ttm.training.study.symbol_options import SymbolStudyOptions


@dataclass(frozen=True)
class CopyOptions(SymbolStudyOptions):
    """What `ttm study copy` asks; its defaults take most of an hour."""

    core: tuple[CoreName, ...] = ("tlb", "ttm")
    """Cores to compare."""
    lengths: tuple[int, ...] = (100, 200, 300)
    """T, the number of ticks between the digits and the signal to repeat them."""
    shortest: int | None = None
    """Draw T anew for each batch, from this number to the length, so that the lag from a digit to its
    repetition varies. The held-out sequences are then of three lengths. None: all have the same T."""
    minutes: float = 10.0
    """Longest time for one training."""
    unique: int | None = None
    """Sequences to train on again and again (paper: 6200 at T = 100); None for new ones."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        super().check()
        require_some(options(self, "core", "lengths"))
        require_at_least(1, options(self, "unique", "shortest"))
        require_above_0(options(self, "minutes"))
        if min(self.lengths) < 1:
            raise UserError(f"--lengths has {min(self.lengths)}; give numbers of ticks, 1 or more")
        if self.shortest is not None:
            self._check_shortest(self.shortest)

    def _check_shortest(self, shortest: int) -> None:
        if shortest > min(self.lengths):
            raise UserError(
                f"--shortest is {shortest}, but --lengths has {min(self.lengths)}; give the same or less"
            )
        if self.unique is not None:
            raise UserError("--shortest draws new sequences for every batch; leave out --unique")

    @property
    def seconds(self) -> float:
        """Longest time for one training, evaluations included."""
        return 60 * self.minutes
