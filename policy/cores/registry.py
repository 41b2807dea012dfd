"""The table of temporal cores. A new core is one new file and one line in `CORES`.

Nothing here imports a core or PyTorch, so that the command line can list the names quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from ttm.policy.cores.core import CoreConfig

Config = TypeVar("Config", bound=Any)  # a dataclass


@dataclass(frozen=True)
class CoreEntry:
    """One entry of the table."""

    config: str  # "module:class" of the configuration; all its fields have defaults
    description: str  # what the core is, for `ttm train --help`


BASELINES = "ttm.policy.cores.baselines:"
CORES: Mapping[str, CoreEntry] = {
    "ttm": CoreEntry("ttm.policy.cores.ttm:TokenTuringConfig", "Token Turing Machine"),
    "lstm": CoreEntry(BASELINES + "LstmConfig", "LSTM, one for each token slot"),
    "transformer": CoreEntry(BASELINES + "CausalTransformerConfig", "causal Transformer over the last ticks"),
    "recurrent-transformer": CoreEntry(
        BASELINES + "RecurrentTransformerConfig", "Transformer over state tokens and inputs"
    ),
    "mixer": CoreEntry(BASELINES + "TemporalMixerConfig", "MLP-Mixer over the tokens of the last ticks"),
    "frame-stacking": CoreEntry(
        BASELINES + "FrameStackingConfig", "Transformer over the tokens of the last ticks"
    ),
    "hourglass": CoreEntry(
        "ttm.policy.cores.hourglass:HourglassConfig", "Transformer on a shortened sequence of ticks"
    ),
    "tlb": CoreEntry("ttm.policy.cores.tlb:TemporalLatentBottleneckConfig", "Temporal Latent Bottleneck"),
}  # fmt: skip
"""Name -> core. Checkpoints store the name."""

TTM = "ttm"
"""The default, and the core of checkpoints from before there were several."""

NONE = "none"
"""The name of the Token Turing Machine with memory=false."""

NAMES: tuple[str, ...] = (*CORES, NONE)
"""All names that `ttm train --core` and the studies accept."""

FORMER_FIELDS: Mapping[str, frozenset[str]] = {TTM: frozenset({"keep_portion"})}
"""Name -> fields of its configuration that older checkpoints hold, and that have no effect any more."""


def core_descriptions() -> str:
    """Return all names with their descriptions, as one sentence for a help text."""
    found = [f"{name}: {entry.description}" for name, entry in CORES.items()]
    return "; ".join([*found, f"{NONE}: ttm with its memory emptied at every tick"])


def config_class(kind: str) -> type[CoreConfig]:
    """Import and return the configuration class of a core. Raises `KeyError` if there is none."""
    module, _, name = CORES[kind].config.partition(":")
    return getattr(import_module(module), name)


def core_to_dict(config: CoreConfig) -> dict[str, Any]:
    """Return plain data for JSON: {"kind": name, field: value, ...}."""
    return {"kind": _kind(config), **asdict(config)}


def core_from_dict(data: Mapping[str, Any]) -> CoreConfig:
    """Read the result of `core_to_dict`. Raises `KeyError` or `TypeError` for another version's."""
    kind = data.get("kind", TTM)
    former = FORMER_FIELDS.get(kind, frozenset()) | {"kind"}
    return config_class(kind)(**{name: data[name] for name in data if name not in former})


def core_name(config: CoreConfig) -> str:
    """Return the name in `NAMES` that describes `config` best."""
    return NONE if not getattr(config, "memory", True) else _kind(config)


def sized_like(name: str, other: CoreConfig) -> CoreConfig:
    """Return the core called `name`, with the values of `other` for all fields that both have.

    The emptied memory of "none" is not taken over.
    """
    if name not in NAMES:
        raise UserError(f"there is no core '{name}'; give one of {', '.join(NAMES)}")
    made = config_class(TTM if name == NONE else name)()
    common = {field.name for field in fields(made)} & {field.name for field in fields(other)}
    values = {field: getattr(other, field) for field in common - {"memory"}}
    return replace(made, **values, **({"memory": False} if name == NONE else {}))


def with_options(config: Config, options: Sequence[str], what: str = "core") -> Config:
    """Return a dataclass `config` with the values of `options`, each of the form "field=value".

    what: what it configures, for errors.
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for option in options:
        name, _, text = option.partition("=")
        if name not in values:
            raise UserError(f"the {what} has no option '{name}'; it has {', '.join(values)}")
        now = values[name]  # decides the type; the configuration checks which words it accepts
        is_bool = isinstance(now, bool)
        try:
            known = {"true": True, "false": False}
            values[name] = known[text.lower()] if is_bool else type(now)(text)
        except (KeyError, ValueError) as error:
            wanted = "true or false" if is_bool else f"a number, such as {name}={now}"
            raise UserError(f"{what} option {name} is '{text}'; give {wanted}") from error
    return type(config)(**values)


def _kind(config: CoreConfig) -> str:
    """Return the name of the core in `CORES`. No other core is imported for it."""
    place = f"{type(config).__module__}:{type(config).__qualname__}"
    return next(name for name, entry in CORES.items() if entry.config == place)
