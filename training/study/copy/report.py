"""The sizes, the table and the JSON of `ttm study copy`."""

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
from ttm.training.common.tables import compact_table
from ttm.training.study.copy.task import NUM_DIGITS, lag
from ttm.training.study.copy.training import CopyOptions, CopyResult

COMMON: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128, "window": NUM_DIGITS}
)
"""Of every core that has such fields. A window is as long as the Temporal Latent Bottleneck's chunk."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tlb": {"num_latents": NUM_DIGITS, "chunk_size": NUM_DIGITS, "cross_every": 1},
        "hourglass": {"hierarchy": "1@1 2@4 1@1"},
        "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
    }
)

PAPER_SAMPLES: Mapping[tuple[str, int], str] = MappingProxyType({("tlb", 100): "6,200"})
"""(Core, T) -> unique sequences after which the Temporal Latent Bottleneck paper has every digit right."""

HEADER = f"""\
Copying: {NUM_DIGITS} digits of 1 to 8, T zeros, a 9, {NUM_DIGITS} zeros; at these last the digits are to be said.
By chance 1 of 8 digits is right (12.5 %), and no sequence.

  size       thousands of weights.
  sees       how many ticks back the last output depends on, by its gradient before training; "all": the first too.
             The task needs T + {lag(0)}. What sees less can only guess.
  digits     held-out digits that are right, and
  whole      held-out sequences without a fault, when all of the 200 were, or when time was up.
  samples    sequences presented until then; ">" where not all were right.
  s          seconds, with evaluations; CPU threads: {{threads}}; longest time for a training: {{minutes:g}} minutes.
  paper      unique sequences until all were right (Didolkar et al. 2022); — where the figure is not known here.
"""


def copy_core(name: str, options: Sequence[str] = ()) -> CoreConfig:
    """See `study_core`."""
    return study_core(name, COMMON, OWN, options)


def progress_line(result: CopyResult) -> str:
    """Of a training that goes on."""
    return (
        f"{result.core}, T = {result.blanks}, seed {result.seed}: {result.samples} samples, loss {result.loss:.3f}, "
        f"digits {_percent(result.digits)} %, sequences {_percent(result.sequences)} %, {result.seconds:.0f} s"
    )


def copy_table(results: Sequence[CopyResult], unique: int | None) -> Table:
    """One row for each training."""
    kind = "fresh" if unique is None else f"{unique:,} unique, repeated"
    columns = (
        "core",
        "size",
        "T",
        "seed",
        "sees",
        "digits\n%",
        "whole\n%",
        "samples",
        "s",
        "paper",
    )
    table = compact_table(f"Copying after T ticks, from {kind} sequences", columns)
    table.columns[0].no_wrap = False  # on a narrow screen names give way, not figures
    for result in results:
        table.add_row(
            result.core,
            f"{result.parameters / 1000:.0f}",
            str(result.blanks),
            str(result.seed),
            _seen(result),
            _percent(result.digits),
            _percent(result.sequences),
            f"{'' if result.perfect else '>'}{result.samples:,}",
            f"{result.seconds:.0f}",
            PAPER_SAMPLES.get((result.core, result.blanks), "—"),
        )
    return table


def to_json(
    configs: Mapping[str, CoreConfig], options: CopyOptions, results: Sequence[CopyResult]
) -> str:
    """All figures, with the sizes that they belong to."""
    return json.dumps(
        {
            "cores": {name: core_to_dict(config) for name, config in configs.items()},
            "options": asdict(options),
            "results": [{**asdict(result), "perfect": result.perfect} for result in results],
        },
        indent=2,
    )


def _seen(result: CopyResult) -> str:
    return "all" if result.ticks_seen >= result.blanks + 2 * NUM_DIGITS else str(result.ticks_seen)


def _percent(share: float) -> str:
    """Of fewer than all never "100.0 %"."""
    return f"{int(share * 1000) / 10:.1f}"
