"""The models of `ttm study chunks`, and the highest accuracy that each can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.configs import core_name
from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import study_core
from ttm.training.study.chunks.task import (
    CHUNK,
    best_with_one_tick,
    best_with_two_ticks,
    best_without_vanilla_layers,
)
from ttm.training.study.symbol_study import SMALL_CORE

COMMON: Mapping[str, Any] = MappingProxyType({**SMALL_CORE, "window": 8})
"""Sizes of every core that has such fields."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"ttm": {"memory_size": 4, "process_size": 2}}
)
"""Sizes of single cores. A core that is not named here gets `COMMON` alone."""


@dataclass(frozen=True)
class ChunkModel:
    """A core to be trained, and its name in the tables."""

    name: str
    config: CoreConfig

    def limit(self, letters: int) -> float | None:
        """Return the highest accuracy that the model can reach; None where we do not know it.

        letters: V.
        """
        if core_name(self.config) == "none":
            return best_with_one_tick(letters)
        if not isinstance(self.config, HourglassConfig):
            return best_with_two_ticks(letters)
        return _limit_of_hierarchy(self.config, letters)


def chunk_models(
    cores: Sequence[str], hierarchies: Sequence[str], options: Sequence[str]
) -> list[ChunkModel]:
    """Return one model for each core, and for Hourglass one for each hierarchy.

    options: what the user asked for, each "field=value". Raises `UserError` for one that does not
        fit.
    """
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
    # Upsampling other than by repeating has weights, or ages, for each tick of a group.
    knows_place = config.upsampling != "repeat"
    return best_without_vanilla_layers(letters) if knows_place else best_with_one_tick(letters)
