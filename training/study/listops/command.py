"""`ttm study listops`: which memory can tell the value of nested operations, read token by token?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttm.training.common.core_names import CoreName
from ttm.training.option_checks import require_1_or_more, require_some
from ttm.training.study.symbol_study import SymbolStudyCommand

if TYPE_CHECKING:
    from ttm.policy.cores.temporal_core import CoreConfig
    from ttm.training.study.listops.task import Expression, ListopsTask
    from ttm.training.study.listops.training import ListopsOptions, ListopsResult


@dataclass(frozen=True)
class StudyListopsCommand(SymbolStudyCommand):
    """Train memories to tell the value of ListOps expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, scaled down.

    One token a tick; the value is asked for at the last. Made as Long Range Arena makes them, but much shorter, and the
    models are small, so that all cores take about ten minutes on one CPU core: not comparable with published figures.
    """

    core: tuple[CoreName, ...] = ("tlb", "hourglass", "ttm", "none", "lstm", "transformer")
    """Memories to compare."""
    samples: int = 64_000
    """Expressions to train on; the default steps meet each once."""
    held_out: int = 2000
    """Expressions that are asked for at the end; none of them is trained on."""
    min_length: int = 10
    """Tokens of an expression, at least: digits, operators and closing brackets."""
    max_length: int = 50
    """Tokens at most."""
    depth: int = 3
    """Operators within one another, at most."""
    arguments: int = 5
    """Arguments of an operator, at most; at least 2."""
    operator_probability: float = 0.25
    """Of an argument to be an operator, where the depth allows it, before the lengths are looked at."""
    steps: int = 1000
    """Of training, the same for all cores."""
    batch_size: int = 64
    data_seed: int = 0
    """Of the expressions."""

    def run(self) -> int:
        """Trains them one after another; returns the exit code."""
        task = self._task()
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.common.allocator import keep_freed_memory
        from ttm.training.common.tables import write_figures
        from ttm.training.study.listops.report import (
            guesses,
            header,
            listops_core,
            listops_table,
            to_json,
        )

        configs: dict[str, CoreConfig] = {
            name: listops_core(name, self.max_length, self.core_options) for name in self.core
        }
        expressions = task.make(self.held_out + self.samples, self.data_seed)
        held_out, train = expressions[: self.held_out], expressions[self.held_out :]
        keep_freed_memory()
        torch.set_num_threads(self.threads)
        options = self._options()
        results = self._train(configs, train, held_out, options)
        console, guessed = Console(highlight=False), guesses(train, held_out)
        console.print(
            header(task, train, held_out, options, results, self.threads),
            soft_wrap=True,
            markup=False,
        )
        console.print(listops_table(guessed, results))
        write_figures(console, self.json, to_json(task, configs, options, guessed, results))
        return 0

    def _train(
        self,
        configs: dict[str, CoreConfig],
        train: list[Expression],
        held_out: list[Expression],
        options: ListopsOptions,
    ) -> list[ListopsResult]:
        from rich.console import Console

        from ttm.training.common.fit import Progress
        from ttm.training.study.listops.report import progress_line
        from ttm.training.study.listops.training import train_listops

        shown, results = Console(stderr=True, highlight=False), []
        for name, config in configs.items():
            for seed in self.seeds:

                def report(progress: Progress, name: str = name, seed: int = seed) -> None:
                    shown.print(progress_line(name, seed, progress, self.steps), soft_wrap=True)

                results.append(train_listops(name, config, train, held_out, seed, options, report))
        return results

    def _options(self) -> ListopsOptions:
        from ttm.training.study.listops.training import ListopsOptions

        return ListopsOptions(self.width, self.batch_size, self.learning_rate, self.steps)

    def _task(self) -> ListopsTask:
        """Of the options, all of which are looked at."""
        from ttm.training.study.listops.task import ListopsTask

        self.check()
        require_some(self, "core")
        require_1_or_more(self, "samples", "held_out", "steps")
        return ListopsTask(
            self.min_length, self.max_length, self.depth, self.arguments, self.operator_probability
        )
