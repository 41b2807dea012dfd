"""The sizes of the cores in `ttm study listops`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import study_core
from ttm.training.study.symbol_study import SMALL_CORE

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
"""Sizes of single cores. A core that is not named here gets `SMALL_CORE` alone."""

COVERING = ("transformer", "hourglass")
"""Cores whose window covers the longest expression: the first is then the plain causal Transformer.
"""


def listops_core(name: str, max_length: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` in the sizes of this study; see `study_core`.

    max_length: number of tokens that the windows of the cores in `COVERING` cover.
    """
    window = {"window": max(2, max_length)} if name in COVERING else {}
    return study_core(name, SMALL_CORE, {name: {**OWN.get(name, {}), **window}}, options)
