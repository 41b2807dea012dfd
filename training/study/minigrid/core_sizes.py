"""The sizes of the cores in the studies of MiniGrid levels: all have the same number of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError
from ttm.training.common.core_sizes import study_core

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
SOLVED = "mlp_size"
"""The field of the other cores that is chosen so that they have this number of parameters."""


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
    if not hasattr(config, SOLVED) or any(option.partition("=")[0] == SOLVED for option in options):
        return config
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    least = num_parameters(replace(config, **{SOLVED: 1}), width)
    # The number of parameters is linear in the width of the MLPs.
    each = num_parameters(replace(config, **{SOLVED: 2}), width) - least
    if least > wanted:
        raise UserError(
            f"core {name} has {least:,} parameters without its MLPs, more than the {wanted:,} that "
            f"all are to have; give smaller --core-options, or an mlp_size among them, "
            f"with which it has a size of its own"
        )
    return replace(config, **{SOLVED: 1 + round((wanted - least) / each)})


def num_parameters(config: CoreConfig, width: int) -> int:
    """Return the number of parameters of the core alone. width: D."""
    return sum(parameter.numel() for parameter in config.build(width, num_inputs=1).parameters())
