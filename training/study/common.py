"""What the studies share: options and sizes of those on sequences of symbols, and printed results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ttm.policy.errors import options, require_above_0, require_at_least, require_some
from ttm.training.console import write_figures
from ttm.training.runtime import keep_freed_memory

SMALL_CORE: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128}
)
"""Sizes of every core that has such fields, so that one CPU core trains it within minutes."""
HELD_OUT_SEED = 2**40
"""Seed of held-out sequences, which are the same for all trainings."""


@dataclass(frozen=True)
class SymbolStudy:
    """The options of every study that trains cores on sequences of symbols."""

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
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "seeds"))
        require_at_least(1, options(self, "width", "batch_size"))
        require_above_0(options(self, "learning_rate"))


def prepare_process() -> None:
    """Set up this process for training on one CPU core.

    Figures would depend a little on the number of threads, by the order of rounded sums.
    """
    keep_freed_memory()
    torch.set_num_threads(1)


def print_results(*parts: str | Table, figures: dict[str, Any], json_path: Path | None) -> None:
    """Print notes and tables in this order; write `figures` to `json_path`, if it is not None.

    Raises `UserError` if the file cannot be written.
    """
    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True, markup=False)
        else:
            console.print(part)
    write_figures(console, json_path, json.dumps(figures, indent=2))
