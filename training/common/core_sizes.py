"""Temporal cores at the common sizes of a study, so that they differ in their memory only.

Where a study wants the same number of parameters for all cores, the width of their MLPs is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ttm.policy.cores.configs import sized_like, with_options
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.errors import UserError


def study_core(
    name: str,
    common: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]],
    options: Sequence[str] = (),
) -> CoreConfig:
    """Return the configuration of the core called `name` at the sizes of a study.

    The values of a field are taken, with increasing priority, from the core's defaults, `common`
    (where the core has such a field), `own[name]` and `options`.

    options: what the user gave, each "field=value". Raises `UserError` if a name, a field or a
    value is wrong.
    """
    config = sized_like(name, TokenTuringConfig())
    has = {field.name for field in fields(config)}
    values = {field: value for field, value in common.items() if field in has}
    try:
        return with_options(replace(config, **{**values, **own.get(name, {})}), options)
    except UserError as error:
        raise UserError(f"core {name}: {error}") from error


MLP_SIZE = "mlp_size"
"""The field that `with_parameters` chooses."""


def has_free_size(config: CoreConfig, options: Sequence[str] = ()) -> bool:
    """Return whether the core has MLPs whose width none of the user's `options` sets."""
    given = {option.partition("=")[0] for option in options}
    return hasattr(config, MLP_SIZE) and MLP_SIZE not in given


def num_parameters(config: CoreConfig, width: int, num_inputs: int = 1) -> int:
    """Return the number of parameters of the core alone.

    width: D. num_inputs: N, the tokens of a tick.
    """
    core = config.build(width, num_inputs)
    return sum(parameter.numel() for parameter in core.parameters())


def with_parameters(
    name: str, config: CoreConfig, wanted: int, width: int, num_inputs: int = 1, *, advice: str
) -> CoreConfig:
    """Return `config` with the width of its MLPs for which it has about `wanted` parameters.

    Raises `UserError`, which ends with `advice`, if the core called `name` is larger than that even
    with the narrowest MLPs. For width and num_inputs see `num_parameters`.
    """
    least = num_parameters(replace(config, **{MLP_SIZE: 1}), width, num_inputs)
    # The number of parameters is linear in the width of the MLPs.
    each = num_parameters(replace(config, **{MLP_SIZE: 2}), width, num_inputs) - least
    if least > wanted:
        raise UserError(
            f"core {name} has {least:,} parameters without its MLPs, more than the {wanted:,} that "
            f"all are to have; {advice}"
        )
    return replace(config, **{MLP_SIZE: 1 + round((wanted - least) / each)})
