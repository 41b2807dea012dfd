"""The sizes, the tables and the JSON of `ttm study listops`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.cores.registry import core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import study_core
from ttm.training.common.fit import Progress
from ttm.training.common.tables import compact_table
from ttm.training.study.listops.task import Expression, ListopsTask
from ttm.training.study.listops.training import (
    ListopsOptions,
    ListopsResult,
    Tally,
    guessed_values,
    tally,
)

COMMON: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128}
)
"""Of every core that has such fields."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tlb": {"num_latents": 10, "chunk_size": 10, "cross_every": 1},
        "hourglass": {"hierarchy": "1@1 2@4 1@1"},
        "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
        "none": {"memory_size": 1, "process_size": 8},
        "frame-stacking": {"window": 8},
        "mixer": {"window": 8},
    }
)

COVERING = ("transformer", "hourglass")
"""Get a window as long as the longest expression: the first is then the plain causal Transformer."""

HEADER = """\
ListOps, scaled down: these figures are not comparable with published ones.
                        here                             Long Range Arena (Tay et al. 2020)
  tokens                {lengths:<31}  500 to 2,000
  training expressions  {samples:<31}  96,000
  presented             {presented:<31}  —
  operators nested      at most {depth:<23}  at most 9
  arguments             2 to {arguments:<26}  2 to 10
  model                 {model}
  plain Transformer     {transformer:<31}  36.37 % (its table 1)
  TLB                   {bottleneck:<31}  — (the TLB paper's figure is not known here)

An example: {example}
is {value}. Held out: {held_out} expressions, {shared} of which are in the training set; {frequent:.1f} % of them have
the most frequent value, {most}.

  size       thousands of weights.
  accuracy   held-out values that are right (%), after {steps} steps of {batch_size} expressions, the same for all.
  95 %       Wilson's interval: how much other held-out expressions could change it. Another seed is another row.
  by depth   operators within one another; below it, how many of the held-out expressions.
  s          seconds of training; CPU threads: {threads}.
  guess      no network: the most frequent value in training, of all or of those with the same first operator.
"""


def listops_core(name: str, max_length: int, options: Sequence[str] = ()) -> CoreConfig:
    """See `study_core`. max_length: tokens that a window must cover, where it can."""
    window = {"window": max(2, max_length)} if name in COVERING else {}
    return study_core(name, COMMON, {name: {**OWN.get(name, {}), **window}}, options)


def guesses(train: Sequence[Expression], held_out: Sequence[Expression]) -> dict[str, Tally]:
    """What those reach who look at nothing, and at the first token alone."""
    return {
        "guess": tally(held_out, guessed_values(train, held_out, lambda e: "")),
        "guess by 1st": tally(held_out, guessed_values(train, held_out, lambda e: e.tokens[0])),
    }


def header(
    task: ListopsTask,
    train: Sequence[Expression],
    held_out: Sequence[Expression],
    options: ListopsOptions,
    results: Sequence[ListopsResult],
    threads: int,
) -> str:
    """What was done, and how it differs from the papers'."""
    values = [e.value for e in held_out]
    most = max(set(values), key=lambda value: (values.count(value), -value))
    shown = min(held_out, key=lambda e: abs(len(e.tokens) - 15))
    presented = options.steps * options.batch_size
    return HEADER.format(
        lengths=f"{task.min_length} to {task.max_length}",
        samples=f"{len(train):,}",
        presented=f"{presented:,} ({presented / len(train):.2g} times each)",
        depth=task.depth,
        arguments=task.arguments,
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
        threads=threads,
    )


def listops_table(guessed: Mapping[str, Tally], results: Sequence[ListopsResult]) -> Table:
    """One row for each guess and each training."""
    depths = next(iter(guessed.values())).by_depth
    columns = ("core", "size", "seed", "accuracy", "95 %")
    by_depth = (f"depth {depth}\n{count}" for depth, (_, count) in depths.items())
    table = compact_table("Values of held-out expressions", (*columns, *by_depth, "s"))
    table.columns[0].no_wrap = False  # on a narrow screen names give way, not figures
    for name, told in guessed.items():
        table.add_row(name, "—", "—", *_figures(told), "—")
    for result in results:
        size = f"{result.parameters / 1000:.0f}"
        table.add_row(
            result.core, size, str(result.seed), *_figures(result.tally), f"{result.seconds:.0f}"
        )
    return table


def progress_line(core: str, seed: int, progress: Progress, steps: int) -> str:
    """Of a training that goes on."""
    return (
        f"{core}, seed {seed}: {progress.steps} of {steps} steps, loss {progress.loss:.3f}, "
        f"{progress.seconds:.0f} s"
    )


def to_json(
    task: ListopsTask,
    configs: Mapping[str, CoreConfig],
    options: ListopsOptions,
    guessed: Mapping[str, Tally],
    results: Sequence[ListopsResult],
) -> str:
    """All figures, with the task and the sizes that they belong to."""
    return json.dumps(
        {
            "task": asdict(task),
            "cores": {name: core_to_dict(config) for name, config in configs.items()},
            "options": asdict(options),
            "guesses": {name: _plain(told) for name, told in guessed.items()},
            "results": [{**asdict(result), "tally": _plain(result.tally)} for result in results],
        },
        indent=2,
    )


def _figures(told: Tally) -> list[str]:
    low, high = told.interval
    shares = [_percent(right / count) for right, count in told.by_depth.values()]
    return [_percent(told.accuracy), f"{_percent(low)} to {_percent(high)}", *shares]


def _plain(told: Tally) -> dict[str, Any]:
    by_depth = {
        str(depth): {"right": right, "count": count}
        for depth, (right, count) in told.by_depth.items()
    }
    return {"accuracy": told.accuracy, "interval": told.interval, "by_depth": by_depth}


def _accuracies(core: str, results: Sequence[ListopsResult]) -> str:
    shares = [f"{_percent(result.tally.accuracy)} %" for result in results if result.core == core]
    return ", ".join(shares) or "—"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
