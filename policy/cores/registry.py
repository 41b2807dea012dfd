"""The temporal cores by name: one line for each kind, used by checkpoints and by `ttm train --core`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.causal_transformer import CausalTransformerConfig
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.lstm import LstmConfig
from ttm.policy.cores.recurrent_transformer import RecurrentTransformerConfig
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.tlb.temporal_latent_bottleneck import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.windowed import FrameStackingConfig, TemporalMixerConfig
from ttm.policy.errors import UserError

CORES: Mapping[str, type[CoreConfig]] = MappingProxyType(
    {
        "ttm": TokenTuringConfig,
        "lstm": LstmConfig,
        "transformer": CausalTransformerConfig,
        "recurrent-transformer": RecurrentTransformerConfig,
        "mixer": TemporalMixerConfig,
        "frame-stacking": FrameStackingConfig,
        "hourglass": HourglassConfig,
        "tlb": TemporalLatentBottleneckConfig,
    }
)
"""Kind -> configuration. Each has defaults for every field."""

TTM = "ttm"
"""What checkpoints from before there were several kinds hold."""

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {"none": (TTM, MappingProxyType({"memory": False}))}
)
"""Further names for `ttm train --core`: a kind, with fields that have these values."""

NAMES = (*CORES, *VARIANTS)
"""All that `sized_like` takes."""

TRUTH = MappingProxyType({"true": True, "false": False})
"""How options say it."""


def core_to_dict(config: CoreConfig) -> dict[str, Any]:
    """Plain data for JSON: {"kind": name, field: value, …}."""
    return {"kind": _kind(config), **asdict(config)}


def core_from_dict(data: Mapping[str, Any]) -> CoreConfig:
    """Reads back `core_to_dict`; raises `KeyError` or `TypeError` if `data` is of another version."""
    values = dict(data)
    return CORES[values.pop("kind", TTM)](**values)


def core_name(config: CoreConfig) -> str:
    """The one of `NAMES` that `config` would be called by."""
    kind = _kind(config)
    for name, (of_kind, fixed) in VARIANTS.items():
        if kind == of_kind and all(
            getattr(config, field) == value for field, value in fixed.items()
        ):
            return name
    return kind


def sized_like(name: str, other: CoreConfig) -> CoreConfig:
    """The core called `name`, with the values of `other` wherever both have a field of that name."""
    if name not in NAMES:
        raise UserError(f"there is no core '{name}'; give one of {', '.join(NAMES)}")
    kind, fixed = VARIANTS.get(name, (name, {}))
    made = CORES[kind]()
    common = {field.name for field in fields(made)} & {field.name for field in fields(other)}
    return replace(made, **{**{field: getattr(other, field) for field in common}, **fixed})


def with_options(config: CoreConfig, options: Sequence[str]) -> CoreConfig:
    """`config` with `options`, each "field=value"; `UserError` names the fields if one is unknown or unreadable."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for option in options:
        name, _, text = option.partition("=")
        if name not in values:
            raise UserError(f"the core has no option '{name}'; it has {', '.join(values)}")
        values[name] = _parse(name, text, values[name])
    return type(config)(**values)


def _kind(config: CoreConfig) -> str:
    return next(name for name, kind in CORES.items() if type(config) is kind)


def _parse(name: str, text: str, now: Any) -> Any:
    """`text` as a value of the type of `now`; which words a field takes is the configuration's own to say."""
    if isinstance(now, str):
        return text
    try:
        return TRUTH[text.lower()] if isinstance(now, bool) else type(now)(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if isinstance(now, bool) else f"a number, such as {name}={now}"
        raise UserError(f"core option {name} is '{text}'; give {wanted}") from error
