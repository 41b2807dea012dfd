"""Temporal cores at the common sizes of a study, so that they differ in their memory only."""

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
