"""`ttm bench tick`: how long a control tick takes, against plain PyTorch and over a long episode."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Part = Literal["unit", "flat", "whole", "cores"]
Preset = Literal["tiny", "base", "paper"]
LONG = ("flat_ticks", "growing_ticks", "period_ticks")
"""Options that are lengths of episodes."""


@dataclass(frozen=True)
class BenchTickCommand:
    """Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.

    unit: the Token Turing Machine's unit at the paper's robot setting, against a plain eager PyTorch restatement
    with the same weights. flat: the same and a whole policy over 10,000 ticks, beside a causal Transformer
    without a window, whose cost grows; then ticks of tlb and hourglass by age and phase, on one thread. whole: images
    in, action out, for every preset. cores: every temporal core.
    """

    parts: tuple[Part, ...] = ("unit", "flat", "whole", "cores")
    threads: int = 2
    """CPU threads."""
    blocks: int = 30
    """Blocks of 10 calls for each of those that are timed by turns, of which the first two do not count."""
    flat_ticks: int = 10_000
    growing_ticks: int = 400
    """Ticks of the Transformer without a window: its cache takes 0.5 MB a tick, and its time grows with it."""
    period_ticks: int = 1024
    """Ticks of an episode of tlb and hourglass by themselves."""
    presets: tuple[Preset, ...] = ("tiny", "base", "paper")
    whole_ticks: int = 300
    torch_ticks: int = 50
    """Whole ticks with the torch engine, for comparison."""
    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        self._validate()
        # Here, so that `ttm --help` does not load torch.
        from rich.console import Console

        from ttm.training.bench.timing import cpu_threads
        from ttm.training.common.tables import write_figures

        console = Console(highlight=False)
        figures: dict[str, Any] = {"threads": self.threads}
        with cpu_threads(self.threads):
            console.print(
                f"{self.threads} CPU threads. Medians of single ticks at batch 1; error: the largest difference of an "
                f"output from PyTorch's.\n"
            )
            for part in self.parts:
                rows, table = self._measurements()[part]()
                console.print(table)
                figures[part] = [asdict(row) for row in rows]
            if "flat" in self.parts:
                figures["periods"] = self._periods(console)
        write_figures(console, self.json, json.dumps(figures, indent=2))
        return 0

    def _validate(self) -> None:
        from ttm.training.bench.timing import BLOCK

        for name in ("threads", "blocks", *LONG, "whole_ticks", "torch_ticks"):
            least = 4 * BLOCK if name in LONG else 1
            if getattr(self, name) < least:
                raise UserError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least {least}"
                )

    def _measurements(self) -> dict[Part, Callable[[], tuple[list[Any], Table]]]:
        """Rows and table of each part."""
        return {"unit": self._unit, "flat": self._flat, "whole": self._whole, "cores": self._cores}

    def _unit(self) -> tuple[list[Any], Table]:
        from ttm.training.bench.tick.report import unit_table
        from ttm.training.bench.tick.unit import MLP_SIZES, measure_unit

        rows = [row for size in MLP_SIZES for row in measure_unit(size, self.blocks)]
        return rows, unit_table(rows)

    def _flat(self) -> tuple[list[Any], Table]:
        from ttm.policy.run.runner import PolicyRunner
        from ttm.training.bench.tick.policy import preset_policy, tick_loop
        from ttm.training.bench.tick.report import flat_table
        from ttm.training.bench.tick.unit import growing_loop, run_long, unit_loop

        def whole() -> Callable[[], object]:
            return tick_loop(PolicyRunner(preset_policy("tiny")))

        rows = [
            run_long("unit of the TTM", unit_loop, self.flat_ticks),
            run_long("whole policy, preset tiny", whole, self.flat_ticks),
            run_long("Transformer without a window", growing_loop, self.growing_ticks),
        ]
        return rows, flat_table(rows)

    def _periods(self, console: Console) -> list[dict[str, Any]]:
        from ttm.training.bench.tick.period import measure_periods
        from ttm.training.bench.tick.report import PERIOD_NOTES, period_table

        rows = measure_periods(self.period_ticks)
        console.print(period_table(rows))
        console.print(PERIOD_NOTES, soft_wrap=True)
        return [asdict(row) for row in rows]

    def _whole(self) -> tuple[list[Any], Table]:
        from ttm.training.bench.tick.policy import measure_whole
        from ttm.training.bench.tick.report import whole_table

        rows = [
            row
            for preset in self.presets
            for row in measure_whole(preset, self.whole_ticks, self.torch_ticks)
        ]
        return rows, whole_table(rows)

    def _cores(self) -> tuple[list[Any], Table]:
        from ttm.training.bench.tick.policy import measure_cores
        from ttm.training.bench.tick.report import core_table

        rows = measure_cores(self.blocks)
        return rows, core_table(rows)
