"""The sizes of the cores in `ttm study copy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import study_core
from ttm.training.study.copy.task import NUM_DIGITS
from ttm.training.study.symbol_study import SMALL_CORE

COMMON: Mapping[str, Any] = MappingProxyType({**SMALL_CORE, "window": NUM_DIGITS})
"""Sizes of every core that has such fields. A window is as long as the Temporal Latent Bottleneck's
chunk."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tlb": {"num_latents": NUM_DIGITS, "chunk_size": NUM_DIGITS, "cross_every": 1},
        "hourglass": {"hierarchy": "1@1 2@4 1@1"},
        "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
    }
)
"""Sizes of single cores. A core that is not named here gets `COMMON` alone."""


def copy_core(name: str, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` in the sizes of this study; see `study_core`."""
    return study_core(name, COMMON, OWN, options)
