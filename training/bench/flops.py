"""`ttm bench flops`: what a step costs, beside the figures of the Token Turing Machines paper's tables 2 to 5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BenchFlopsCommand:
    """Count the operations of a step of every temporal core, and compare them with the TTM paper's tables 2 to 5.

    Counted twice: by PyTorch's counter on a real step, and by hand from the sizes. Takes seconds; nothing is timed.
    """

    preset: Literal["tiny", "base", "paper"] = "tiny"
    """Sizes of the last table, which compares the cores of this project."""

    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        # Here, so that `ttm --help` does not load torch.
        from rich.console import Console

        from ttm.training.bench.flops_report import (
            CONVENTION,
            measure_cores,
            measure_tables,
            print_cores,
            print_tables,
            to_json,
        )

        console = Console(highlight=False)
        tables, cores = measure_tables(), measure_cores(self.preset)
        console.print(CONVENTION, soft_wrap=True)
        print_tables(console, tables)
        print_cores(console, cores, self.preset)
        if self.json is not None:
            self.json.parent.mkdir(parents=True, exist_ok=True)
            self.json.write_text(to_json(tables, cores, self.preset))
            console.print(f"figures: {self.json}", soft_wrap=True)
        return 0
