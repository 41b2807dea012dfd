"""The sizes of the cores in the studies of MiniGrid levels: all have the same number of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import (
    has_free_size,
    num_parameters,
    study_core,
    with_parameters,
)

COMMON: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "window": 16, "bottleneck": 16}
)
"""Sizes of every core that has such fields: about two blocks, and one token a tick."""
OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ttm": {"process_size": 2, "memory_size": 8},
        "none": {"process_size": 2, "memory_size": 8},
        "recurrent-transformer": {"memory_size": 4},
        "mixer": {"window": 4, "token_mixing_size": 32},
        "frame-stacking": {"window": 4},
        "tlb": {"num_layers": 1, "num_latents": 8, "chunk_size": 8},
        "hourglass": {
            "hierarchy": "1@1 1@2 1@1",
            "pooling": "average",
            "upsampling": "linear",
            "position": "rotary",
        },
    }
)
"""Sizes of single cores. The Token Turing Machine needs several tokens to read from its memory. A
core that is not named here gets `COMMON` alone."""
REFERENCE = "lstm"
"""The core that determines the number of parameters; it has no MLP whose width could be chosen."""
ADVICE = (
    "give smaller --core-options, or an mlp_size among them, with which it has a size of its own"
)


def equal_core(name: str, width: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` with about as many parameters as the LSTM.

    The width of its MLPs is chosen for that.

    A core without an `mlp_size`, or with one among `options`, keeps its own number of parameters.
    Raises `UserError` for options that do not fit, and if the core is larger than the LSTM even
    with the narrowest MLPs.

    width: D, of both.
    options: what the user asked for, each "field=value".
    """
    config = study_core(name, COMMON, OWN, options)
    if not has_free_size(config, options):
        return config
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    return with_parameters(name, config, wanted, width, advice=ADVICE)
