"""`ttm study copy`: which memory can copy ten digits over hundreds of ticks?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttm.policy.errors import UserError
from ttm.training.common.core_names import CoreName
from ttm.training.option_checks import require_1_or_more, require_above_0, require_some
from ttm.training.study.symbol_study import SymbolStudyCommand

if TYPE_CHECKING:
    from ttm.policy.cores.temporal_core import CoreConfig
    from ttm.training.study.copy.training import CopyOptions, CopyResult


@dataclass(frozen=True)
class StudyCopyCommand(SymbolStudyCommand):
    """Train memories to say ten digits again after T ticks without anything (the TLB paper's copying task).

    A training ends when 200 held-out sequences are right from the first digit to the last, or when its time is up: with
    the defaults it may be most of an hour before the table is printed. Of that the Temporal Latent Bottleneck at
    T = 100 takes a minute or two: --core tlb --lengths 100.
    """

    core: tuple[CoreName, ...] = ("tlb", "ttm")
    """Memories to compare."""
    lengths: tuple[int, ...] = (100, 200, 300)
    """T, ticks between the digits and the signal to say them."""
    minutes: float = 10.0
    """Longest time for one training."""
    unique: int | None = None
    """Sequences to train on, again and again; None for fresh ones without end. The paper has 6200 at T = 100."""

    def run(self) -> int:
        """Trains them one after another; returns the exit code."""
        self._validate()
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.common.allocator import keep_freed_memory
        from ttm.training.common.tables import write_figures
        from ttm.training.study.copy.report import (
            HEADER,
            copy_core,
            copy_table,
            progress_line,
            to_json,
        )
        from ttm.training.study.copy.training import train_copy

        configs: dict[str, CoreConfig] = {
            name: copy_core(name, self.core_options) for name in self.core
        }
        keep_freed_memory()
        torch.set_num_threads(self.threads)
        progress = Console(stderr=True, highlight=False)

        def report(result: CopyResult) -> None:
            progress.print(progress_line(result), soft_wrap=True)

        options = self._options()
        results = [
            train_copy(name, config, blanks, seed, options, report)
            for name, config in configs.items()
            for blanks in self.lengths
            for seed in self.seeds
        ]
        console = Console(highlight=False)
        console.print(HEADER.format(minutes=self.minutes, threads=self.threads), soft_wrap=True)
        console.print(copy_table(results, self.unique))
        write_figures(console, self.json, to_json(configs, options, results))
        return 0

    def _options(self) -> CopyOptions:
        from ttm.training.study.copy.training import CopyOptions

        return CopyOptions(
            self.width, self.batch_size, self.learning_rate, 60 * self.minutes, self.unique
        )

    def _validate(self) -> None:
        self.check()
        require_some(self, "core", "lengths")
        require_1_or_more(self, "unique")
        require_above_0(self, "minutes")
        if min(self.lengths) < 1:
            raise UserError(f"--lengths has {min(self.lengths)}; give numbers of ticks, 1 or more")
