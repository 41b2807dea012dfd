"""Options that the studies on sequences of symbols share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_above_0, require_at_least, require_some


@dataclass(frozen=True)
class SymbolStudyOptions:
    """What a study that trains cores on sequences of symbols asks on the command line."""

    seeds: tuple[int, ...] = (0,)
    """One training for each seed, with other initial weights and batches; held-out data stay."""
    core_options: tuple[str, ...] = ()
    """Fields that all named cores get, such as `num_layers=3`, instead of the study's sizes."""
    width: int = 64
    """D, the width of the core and of the embedding of the symbols."""
    batch_size: int = 32
    """Sequences in a batch."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    threads: int = 1
    """CPU threads. The figures depend a little on their number, by the order of rounded sums."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "seeds"))
        require_at_least(1, options(self, "width", "batch_size", "threads"))
        require_above_0(options(self, "learning_rate"))
