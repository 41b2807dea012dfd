"""`ttm bench flops`: what a step costs, beside figures of the Token Turing Machines and the Hourglass papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BenchFlopsCommand:
    """Count the operations of a step of every temporal core, and compare them with the TTM paper's tables 2 to 5.

    Then the Hourglass paper's linear cost model beside the operations of our core, for the paper's hierarchies.
    Counted twice: by PyTorch's counter on a real step, and by hand from the sizes. Takes seconds; nothing is timed.
    """

    preset: Literal["tiny", "base", "paper"] = "tiny"
    """Sizes of the last two tables, which compare the cores of this project, and Hourglass's hierarchies."""

    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        # Here, so that `ttm --help` does not load torch.
        from rich.console import Console

        from ttm.training.bench.flops.hierarchy_costs import measure_hierarchies, print_hierarchies
        from ttm.training.bench.flops.report import (
            CONVENTION,
            hourglass_sizes,
            measure_cores,
            measure_tables,
            print_cores,
            print_tables,
            to_json,
        )
        from ttm.training.common.tables import write_figures

        console = Console(highlight=False)
        tables, cores = measure_tables(), measure_cores(self.preset)
        sizes, width = hourglass_sizes(self.preset)
        hierarchies = measure_hierarchies(sizes, width)
        console.print(CONVENTION, soft_wrap=True)
        print_tables(console, tables)
        print_cores(console, cores, self.preset)
        print_hierarchies(console, hierarchies, sizes, width)
        write_figures(console, self.json, to_json(tables, cores, self.preset, hierarchies))
        return 0
