"""Every temporal core at the sizes of one study, so that what differs is the memory."""

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
    """The core called `name`: its defaults, then `common` where it has such fields, then
    `own[name]`, then `options`.

    options: what the user asked for, each "field=value". `UserError` for a name, a field or a value
    that is wrong.
    """
    config = sized_like(name, TokenTuringConfig())
    has = {field.name for field in fields(config)}
    values = {field: value for field, value in common.items() if field in has}
    try:
        return with_options(replace(config, **{**values, **own.get(name, {})}), options)
    except UserError as error:
        raise UserError(f"core {name}: {error}") from error
