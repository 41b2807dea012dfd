"""The sizes of the cores in the study: all have as many parameters as ours, within 2 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError
from ttm.policy.network.sight import SightMemory
from ttm.training.common.core_sizes import (
    has_free_size,
    num_parameters,
    study_core,
    with_parameters,
)
from ttm.training.study.suite.variants import Variant

COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "process_size": 8,
        "memory_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "window": 32,
        "bottleneck": 64,
    }
)
"""Sizes of every core that has such fields: those of the tiny preset. A window of 32 ticks reaches
back over a gap of 15, but not over one of 45."""
OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "lstm": {"num_layers": 3},
        "mixer": {"window": 6},
        "frame-stacking": {"window": 6},
        "tlb": {"num_layers": 1, "chunk_size": 8},
        "hourglass": {
            "hierarchy": "1@1 1@2 1@1",
            "pooling": "average",
            "upsampling": "linear",
            "position": "rotary",
        },
    }
)
"""Sizes of single cores. A core that is not named here gets `COMMON` alone."""
REFERENCE = "lstm"
"""The core that determines the number of parameters; it has no MLP whose width could be chosen."""
TOLERANCE = 0.02
"""How far the number of parameters may be from ours, as a portion of it."""


SOURCES = ("ttm", "lstm")
"""The cores whose first weights all others share as far as names and shapes are equal."""


def suite_cores(
    ours: Variant, variants: Sequence[Variant], width: int, num_inputs: int
) -> dict[str, CoreConfig]:
    """Return label -> configuration of each of `variants`; see `sized_cores`.

    Raises `UserError` for options that do not fit, and for a variant whose number of parameters
    differs from that of `ours` by more than `TOLERANCE`.
    """
    each = (ours, *variants)
    cores = sized_cores(ours, each, width, num_inputs)
    sizes = {
        variant.label: variant_parameters(variant, cores[variant.label], width, num_inputs)
        for variant in each
    }
    wanted = sizes[ours.label]
    for label, found in sizes.items():
        if abs(found - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"--core '{label}' has {found:,} parameters and ours {wanted:,}, more than 2 % apart; "
                "leave mlp_size out of its options and of --ours-options, or give sizes that fit"
            )
    return {each.label: cores[each.label] for each in variants}


def source_cores(ours: Variant, width: int, num_inputs: int) -> list[CoreConfig]:
    """Return the cores of `SOURCES`, sized as those that are compared with `ours`."""
    sources = [Variant(name, name, ()) for name in SOURCES]
    return list(sized_cores(ours, sources, width, num_inputs).values())


def sized_cores(
    ours: Variant, variants: Sequence[Variant], width: int, num_inputs: int
) -> dict[str, CoreConfig]:
    """Return label -> configuration of each of `variants`.

    The width of the MLPs is chosen: that of `ours` so that it has as many parameters as the LSTM
    at the study's sizes, and those of all others so that they have as many as `ours`. A core whose
    options name a width, or that has no MLPs, has a size of its own.

    width: D. num_inputs: N, the tokens of a tick. Raises `UserError` for options that do not fit.
    """
    reference = num_parameters(study_core(REFERENCE, COMMON, OWN), width, num_inputs)
    own = _sized(ours, reference, width, num_inputs)
    wanted = variant_parameters(ours, own, width, num_inputs)
    return {each.label: _sized(each, wanted, width, num_inputs) for each in variants}


def variant_parameters(variant: Variant, config: CoreConfig, width: int, num_inputs: int) -> int:
    """Return the number of parameters of the core and of the sight memory.

    config: of the core. num_inputs: N without the tokens of the sight memory.
    """
    own, more = _sight(variant, width)
    return num_parameters(config, width, num_inputs + more) + own


def _sight(variant: Variant, width: int) -> tuple[int, int]:
    """Return the parameters of the sight memory, and the tokens that it adds."""
    if not variant.sight.tokens:
        return 0, 0
    sight = SightMemory(width, variant.sight.tokens)
    return sum(parameter.numel() for parameter in sight.parameters()), sight.num_tokens


def _sized(variant: Variant, wanted: int, width: int, num_inputs: int) -> CoreConfig:
    config = study_core(variant.core, COMMON, OWN, variant.options)
    if not has_free_size(config, variant.options):
        return config
    own, more = _sight(variant, width)
    return with_parameters(
        variant.label,
        config,
        wanted - own,
        width,
        num_inputs + more,
        advice="give it smaller sizes",
    )
