"""The temporal cores by name: one line for each kind, used by checkpoints and by `ttm train --core`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.temporal import CoreConfig
from ttm.policy.token_turing import TokenTuringConfig

CORES: Mapping[str, type[CoreConfig]] = MappingProxyType({"ttm": TokenTuringConfig})
"""Name -> configuration. Each has defaults for every field."""

TTM = "ttm"
"""What checkpoints from before there were several kinds hold."""


def core_to_dict(config: CoreConfig) -> dict[str, Any]:
    """Plain data for JSON: {"kind": name, field: value, …}."""
    kind = next(name for name, kind in CORES.items() if type(config) is kind)
    return {"kind": kind, **asdict(config)}


def core_from_dict(data: Mapping[str, Any]) -> CoreConfig:
    """Reads back `core_to_dict`; raises `KeyError` or `TypeError` if `data` is of another version."""
    values = dict(data)
    return CORES[values.pop("kind", TTM)](**values)


def sized_like(kind: str, other: CoreConfig) -> CoreConfig:
    """A core of `kind` with the values of `other` wherever both have a field of that name."""
    if kind not in CORES:
        raise UserError(f"there is no core '{kind}'; give one of {', '.join(CORES)}")
    made = CORES[kind]()
    common = {field.name for field in fields(made)} & {field.name for field in fields(other)}
    return replace(made, **{name: getattr(other, name) for name in common})


def with_options(config: CoreConfig, options: Sequence[str]) -> CoreConfig:
    """`config` with `options`, each "field=value"; `UserError` names the fields if one is unknown or unreadable."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for option in options:
        name, _, text = option.partition("=")
        if name not in values:
            raise UserError(f"the core has no option '{name}'; it has {', '.join(values)}")
        values[name] = _parse(name, text, values[name])
    return type(config)(**values)


def _parse(name: str, text: str, now: Any) -> Any:
    """`text` as a value of the type of `now`."""
    if isinstance(now, bool):
        if text not in ("true", "false"):
            raise UserError(f"core option {name} is '{text}'; give true or false")
        return text == "true"
    try:
        return type(now)(text)
    except ValueError as error:
        raise UserError(f"core option {name} is '{text}'; give a {type(now).__name__}") from error
