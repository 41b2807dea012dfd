"""`ttm bench flops`: count the operations of a step beside the figures of two papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.network.config import PresetName


@dataclass(frozen=True)
class BenchFlopsCommand:
    """Count the operations of a step of every temporal core, beside tables 2 to 5 of the TTM paper.

    Also compares the linear cost model of the Hourglass paper with the operations of our core, for the
    paper's hierarchies. Operations are counted twice: by PyTorch's counter on a real step, and by hand
    from the sizes. Takes seconds; nothing is timed.
    """

    preset: PresetName = "tiny"
    """Sizes of the last two tables, which compare the cores of this project, and Hourglass's hierarchies."""

    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Count and print; return the exit code."""
        from ttm.training.bench.flops.bench import run_bench

        run_bench(self.preset, self.json)
        return 0
