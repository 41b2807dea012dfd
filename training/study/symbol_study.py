"""What the studies on sequences of symbols ask on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.training.option_checks import require_1_or_more, require_above_0, require_some


@dataclass(frozen=True)
class SymbolStudyCommand:
    """Options of them all."""

    seeds: tuple[int, ...] = (0,)
    """One training for each, with other first weights and other data; what is held out stays."""
    core_options: tuple[str, ...] = ()
    """Fields of all cores named, such as `num_layers=3`; the sizes of the study otherwise."""
    width: int = 64
    """D, of the core and of the symbols' embedding."""
    batch_size: int = 32
    learning_rate: float = 1e-3
    """Of Adam."""
    threads: int = 1
    """CPU threads. Figures differ a little with their number, since sums are rounded in another order."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """`UserError` for a value that cannot be."""
        require_some(self, "seeds")
        require_1_or_more(self, "width", "batch_size", "threads")
        require_above_0(self, "learning_rate")
