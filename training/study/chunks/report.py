"""The models, the table and the JSON of `ttm study chunks`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.registry import core_name, core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import study_core
from ttm.training.common.tables import compact_table
from ttm.training.study.chunks.task import (
    CHUNK,
    best_with_one_tick,
    best_with_two_ticks,
    best_without_vanilla_layers,
)
from ttm.training.study.chunks.training import ChunkOptions, ChunkResult

COMMON: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128, "window": 8}
)
"""Of every core that has such fields."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"ttm": {"memory_size": 4, "process_size": 2}}
)

HEADER = """\
Chunks L#L of V letters; each symbol is to be told from those before it. Symbols: a chunk's first is a guess (1 / V),
its second is #, its third repeats the first.

  right   held-out symbols that were told, with the half of the 95 % interval, and
  1 2 3   the same for a chunk's first, second and third symbol.
  limit   what "right" can be, but for luck: (2 + 1/V)/3 for what remembers two symbols; (1 + 2/V)/3 for a hierarchy
          shortened three times without vanilla layers, which has not seen the chunk's first when it is to tell the
          third; less for it with repeating, and for a core without memory, which do not know where in a chunk they are.

{steps} steps for each; seconds of training with CPU threads: {threads}. The two formulas are the Hourglass paper's
(Nawrot et al. 2021, appendix A.1); figures of it for these sizes are not known here.
"""


@dataclass(frozen=True)
class ChunkModel:
    """A core to be trained, and what the tables call it."""

    name: str
    config: CoreConfig

    def limit(self, letters: int) -> float | None:
        """Highest accuracy for V = `letters`; None where it is not worked out."""
        if core_name(self.config) == "none":
            return best_with_one_tick(letters)
        if not isinstance(self.config, HourglassConfig):
            return best_with_two_ticks(letters)
        return _limit_of_hierarchy(self.config, letters)


def chunk_models(
    cores: Sequence[str], hierarchies: Sequence[str], options: Sequence[str]
) -> list[ChunkModel]:
    """One for each core, and one for each hierarchy of Hourglass."""
    return [model for name in cores for model in _models(name, hierarchies, options)]


def _models(name: str, hierarchies: Sequence[str], options: Sequence[str]) -> Iterator[ChunkModel]:
    if name != "hourglass":
        yield ChunkModel(name, study_core(name, COMMON, OWN, options))
        return
    for hierarchy in hierarchies:
        own = {name: {"hierarchy": hierarchy}}
        yield ChunkModel(f"hourglass {hierarchy}", study_core(name, COMMON, own, options))


def _limit_of_hierarchy(config: HourglassConfig, letters: int) -> float | None:
    hierarchy = parse_hierarchy(config.hierarchy)
    if hierarchy.stages[0].num_layers:
        return best_with_two_ticks(letters)
    if not hierarchy.factors or hierarchy.factors[0] != CHUNK:
        return None
    knows_place = (
        config.upsampling != "repeat"
    )  # the others have weights, or ages, for each tick of a group
    return best_without_vanilla_layers(letters) if knows_place else best_with_one_tick(letters)


def progress_line(result: ChunkResult) -> str:
    """Of a training that ended."""
    return f"V = {result.letters}, {result.name}, seed {result.seed}: {result.accuracy:.3f}, {result.seconds:.0f} s"


def chunk_table(results: Sequence[ChunkResult]) -> Table:
    """One row for each training."""
    columns = ("V", "model", "seed", "right", "±", "limit", "1", "2", "3", "s")
    table = compact_table("Chunks L#L: what was told", columns)
    table.columns[1].justify = "left"
    for result in results:
        table.add_row(
            str(result.letters),
            result.name,
            str(result.seed),
            f"{result.accuracy:.3f}",
            f"{1.96 * result.deviation:.3f}",
            "—" if result.limit is None else f"{result.limit:.3f}",
            *(f"{share:.2f}" for share in result.by_place),
            f"{result.seconds:.0f}",
        )
    return table


def to_json(
    models: Sequence[ChunkModel], options: ChunkOptions, results: Sequence[ChunkResult]
) -> str:
    """All figures, with the sizes that they belong to."""
    return json.dumps(
        {
            "models": {model.name: core_to_dict(model.config) for model in models},
            "options": asdict(options),
            "results": [asdict(result) for result in results],
        },
        indent=2,
    )
