"""The notes, the table and the figures of `ttm study listops`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ttm.policy.cores.configs import core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.fit import Progress
from ttm.training.common.tables import compact_table
from ttm.training.study.listops.options import ListopsOptions
from ttm.training.study.listops.task import Expression
from ttm.training.study.listops.training import ListopsResult, Tally, guessed_values, tally

NOTES = """\
ListOps, scaled down: these figures are not comparable with published ones.
                        here                             Long Range Arena (Tay et al. 2020)
  tokens                {lengths:<31}  500 to 2,000
  training expressions  {samples:<31}  96,000
  presented             {presented:<31}  —
  operators nested      at most {depth:<23}  at most 9
  arguments             2 to {arguments:<26}  2 to 10
  model                 {model}
  plain Transformer     {transformer:<31}  36.37 % (its table 1)
  TLB                   {bottleneck:<31}  — (we do not know the figure in the TLB paper)

An example: {example}
is {value}. Held out: {held_out} expressions, {shared} of which are in the training set. The value
of {frequent:.1f} % of them is {most}, the most frequent one.

  size       thousands of weights.
  accuracy   held-out values that are right (%), after {steps} steps of {batch_size} expressions.
  95 %       Wilson's interval over the choice of the held-out expressions.
  depth      accuracy by the number of operators within one another; below it, the number of
             held-out expressions.
  s          seconds of training; CPU threads: {threads}.
  guess      without a network: the most frequent value in training, of all expressions or of those
             with the same first operator.
"""


def guesses(train: Sequence[Expression], held_out: Sequence[Expression]) -> dict[str, Tally]:
    """Return the accuracy of guesses that use nothing, or only the first token."""
    return {
        "guess": tally(held_out, guessed_values(train, held_out, lambda e: "")),
        "guess by 1st": tally(held_out, guessed_values(train, held_out, lambda e: e.tokens[0])),
    }


def notes(
    train: Sequence[Expression],
    held_out: Sequence[Expression],
    options: ListopsOptions,
    results: Sequence[ListopsResult],
) -> str:
    """Return the text above the table: the task, the differences to the papers, the columns."""
    values = [e.value for e in held_out]
    most = max(set(values), key=lambda value: (values.count(value), -value))
    shown = min(held_out, key=lambda e: abs(len(e.tokens) - 15))
    presented = options.steps * options.batch_size
    return NOTES.format(
        lengths=f"{options.min_length} to {options.max_length}",
        samples=f"{len(train):,}",
        presented=f"{presented:,} ({presented / len(train):.2g} times each)",
        depth=options.depth,
        arguments=options.arguments,
        model=f"width {options.width}; layers and other sizes: --json",
        transformer=_accuracies("transformer", results),
        bottleneck=_accuracies("tlb", results),
        example=shown.text,
        value=shown.value,
        held_out=f"{len(held_out):,}",
        shared=len({e.tokens for e in train} & {e.tokens for e in held_out}),
        frequent=100 * values.count(most) / len(values),
        most=most,
        steps=f"{options.steps:,}",
        batch_size=options.batch_size,
        threads=options.threads,
    )


def listops_table(guessed: Mapping[str, Tally], results: Sequence[ListopsResult]) -> Table:
    """Return a table with one row for each guess and each training."""
    depths = next(iter(guessed.values())).by_depth
    columns = ("core", "size", "seed", "accuracy", "95 %")
    by_depth = (f"depth {depth}\n{count}" for depth, (_, count) in depths.items())
    table = compact_table("Values of held-out expressions", (*columns, *by_depth, "s"))
    table.columns[0].no_wrap = False  # on a narrow screen names may wrap, figures may not
    for name, counted in guessed.items():
        table.add_row(name, "—", "—", *_cells(counted), "—")
    for result in results:
        size = f"{result.parameters / 1000:.0f}"
        table.add_row(
            result.core, size, str(result.seed), *_cells(result.tally), f"{result.seconds:.0f}"
        )
    return table


def progress_line(core: str, seed: int, progress: Progress, steps: int) -> str:
    """Return a line on how a training is going."""
    return (
        f"{core}, seed {seed}: {progress.steps} of {steps} steps, loss {progress.loss:.3f}, "
        f"{progress.seconds:.0f} s"
    )


def figures(
    configs: Mapping[str, CoreConfig],
    options: ListopsOptions,
    guessed: Mapping[str, Tally],
    results: Sequence[ListopsResult],
) -> dict[str, Any]:
    """Return all figures as plain data, with the task, sizes and options that they belong to."""
    fields = ("width", "batch_size", "learning_rate", "steps")
    return {
        "task": asdict(options.task),
        "cores": {name: core_to_dict(config) for name, config in configs.items()},
        "options": {field: getattr(options, field) for field in fields},
        "guesses": {name: _plain(counted) for name, counted in guessed.items()},
        "results": [{**asdict(result), "tally": _plain(result.tally)} for result in results],
    }


def _cells(counted: Tally) -> list[str]:
    low, high = counted.interval
    by_depth = [_percent(right / count) for right, count in counted.by_depth.values()]
    return [_percent(counted.accuracy), f"{_percent(low)} to {_percent(high)}", *by_depth]


def _plain(counted: Tally) -> dict[str, Any]:
    by_depth = {
        str(depth): {"right": right, "count": count}
        for depth, (right, count) in counted.by_depth.items()
    }
    return {"accuracy": counted.accuracy, "interval": counted.interval, "by_depth": by_depth}


def _accuracies(core: str, results: Sequence[ListopsResult]) -> str:
    known = [f"{_percent(result.tally.accuracy)} %" for result in results if result.core == core]
    return ", ".join(known) or "—"


def _percent(portion: float) -> str:
    return f"{100 * portion:.1f}"
