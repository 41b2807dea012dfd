"""The cores' sizes for `ttm study babyai`: as many parameters in each, so that what differs is the memory."""

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
"""Two blocks or so each, one token a tick; the Turing machine needs several to have anything to read."""
REFERENCE = "lstm"
"""Its size is that of all: it alone has no MLP whose width could be chosen."""
SOLVED = "mlp_size"


def equal_core(name: str, width: int, options: Sequence[str] = ()) -> CoreConfig:
    """The core called `name` with the MLPs so wide that it has about as many parameters as the LSTM of that width.

    options: what the user asked for, each "field=value"; with an mlp_size among them there is nothing to solve.
    `UserError` for wrong ones, and if the core is larger than the LSTM whatever the MLPs.
    """
    config = study_core(name, COMMON, OWN, options)
    if not hasattr(config, SOLVED) or any(option.partition("=")[0] == SOLVED for option in options):
        return config
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    least = num_parameters(replace(config, **{SOLVED: 1}), width)
    each = (
        num_parameters(replace(config, **{SOLVED: 2}), width) - least
    )  # it is linear in the MLPs' width
    if least > wanted:
        raise UserError(
            f"core {name} has {least:,} parameters without its MLPs, more than the {wanted:,} that all are to have; "
            f"give smaller --core-options, or an mlp_size among them, with which it has a size of its own"
        )
    return replace(config, **{SOLVED: 1 + round((wanted - least) / each)})


def num_parameters(config: CoreConfig, width: int) -> int:
    """Of the core alone."""
    return sum(parameter.numel() for parameter in config.build(width, num_inputs=1).parameters())
