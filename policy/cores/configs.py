"""Configurations of cores by name: loading, conversion to plain data and back, options as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from ttm.policy.cores import registry
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError

Config = TypeVar("Config", bound=Any)  # a dataclass

BOOLEANS: Mapping[str, bool] = MappingProxyType({"true": True, "false": False})
"""The text of an option -> its value, case aside."""


def config_class(kind: str) -> type[CoreConfig]:
    """Return the configuration class of a core of `registry.CORES`, and import its module.

    All its fields have defaults. Raises `KeyError` if there is no such core.
    """
    module, _, name = registry.CORES[kind].config.partition(":")
    found: type[CoreConfig] = getattr(import_module(module), name)
    return found


def core_to_dict(config: CoreConfig) -> dict[str, Any]:
    """Return plain data for JSON: {"kind": name, field: value, ...}."""
    return {"kind": _kind(config), **asdict(config)}


def core_from_dict(data: Mapping[str, Any]) -> CoreConfig:
    """Read the result of `core_to_dict`.

    Raises `KeyError` or `TypeError` if another version of the code wrote `data`.
    """
    values = dict(data)
    return config_class(values.pop("kind", registry.TTM))(**values)


def core_name(config: CoreConfig) -> str:
    """Return the name in `registry.NAMES` that describes `config` best."""
    kind = _kind(config)
    for name, variant in registry.VARIANTS.items():
        fixed = variant.fields.items()
        if kind == variant.kind and all(getattr(config, field) == value for field, value in fixed):
            return name
    return kind


def sized_like(name: str, other: CoreConfig) -> CoreConfig:
    """Return the core called `name`, with the values of `other` for all fields that both have.

    What makes `other` a variant, such as the emptied memory of "none", is not taken over.
    """
    if name not in registry.NAMES:
        raise UserError(f"there is no core '{name}'; give one of {', '.join(registry.NAMES)}")
    variant = registry.VARIANTS.get(name)
    made = config_class(name if variant is None else variant.kind)()
    common = {field.name for field in fields(made)} & {field.name for field in fields(other)}
    if former := registry.VARIANTS.get(core_name(other)):
        common -= former.fields.keys()
    values = {field: getattr(other, field) for field in common}
    return replace(made, **(values if variant is None else {**values, **variant.fields}))


def with_options(config: Config, options: Sequence[str], what: str = "core") -> Config:
    """Return a dataclass `config` with the values of `options`, each of the form "field=value".

    what: what it configures, for errors. Raises `UserError`, which lists the fields, if one is
    unknown or its value cannot be read.
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for option in options:
        name, _, text = option.partition("=")
        if name not in values:
            raise UserError(f"the {what} has no option '{name}'; it has {', '.join(values)}")
        values[name] = _parse(what, name, text, values[name])
    made: Config = type(config)(**values)
    return made


def _kind(config: CoreConfig) -> str:
    """Return the name of the core in `registry.CORES`; importing the other cores is not needed."""
    place = f"{type(config).__module__}:{type(config).__qualname__}"
    return next(name for name, entry in registry.CORES.items() if entry.config == place)


def _parse(what: str, name: str, text: str, now: Any) -> Any:
    """Convert `text` to the type of `now`. The configuration itself checks which words it accepts."""
    if isinstance(now, str):
        return text
    try:
        return BOOLEANS[text.lower()] if isinstance(now, bool) else type(now)(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if isinstance(now, bool) else f"a number, such as {name}={now}"
        raise UserError(f"{what} option {name} is '{text}'; give {wanted}") from error
