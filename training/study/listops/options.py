"""The options of `ttm study listops`, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.checks import options, require_at_least, require_some
from ttm.training.common.core_names import CoreName
from ttm.training.study.listops.task import ListopsTask
from ttm.training.study.symbol_options import SymbolStudyOptions


@dataclass(frozen=True)
class ListopsOptions(SymbolStudyOptions):
    """What `ttm study listops` asks; its defaults take about ten minutes."""

    core: tuple[CoreName, ...] = ("tlb", "hourglass", "ttm", "none", "lstm", "transformer")
    """Cores to compare."""
    samples: int = 64_000
    """Expressions to train on. The default number of steps presents each of them once."""
    held_out: int = 2000
    """Expressions for the evaluation; none of them is trained on."""
    min_length: int = 10
    """Fewest tokens of an expression: digits, operators and closing brackets."""
    max_length: int = 50
    """Most tokens of an expression."""
    depth: int = 3
    """Most operators within one another."""
    arguments: int = 5
    """Most arguments of an operator, 2 or more."""
    operator_probability: float = 0.25
    """Probability that an argument is an operator, where the depth allows one."""
    steps: int = 1000
    """Training steps, the same for all cores."""
    batch_size: int = 64
    """Expressions in a batch."""
    data_seed: int = 0
    """Seed of the expressions."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range, or if no expression meets the bounds."""
        super().check()
        require_some(options(self, "core"))
        require_at_least(1, options(self, "samples", "held_out", "steps"))
        _ = self.task

    @property
    def task(self) -> ListopsTask:
        """The bounds of the expressions. Raises `UserError` if no expression meets them."""
        return ListopsTask(
            self.min_length, self.max_length, self.depth, self.arguments, self.operator_probability
        )
