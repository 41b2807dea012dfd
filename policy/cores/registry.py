"""The table of temporal cores. A new core is one new file and one line in `CORES`.

Nothing here imports a core, nor PyTorch, so that the command line can list the names quickly.
`ttm.policy.cores.configs` loads configurations by these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class CoreEntry:
    """One entry of the table."""

    config: str
    """Where the configuration class is, as "module:class"; it is imported when it is asked for."""
    description: str
    """What the core is, for `ttm train --help`."""


@dataclass(frozen=True)
class Variant:
    """A further name for a core with some fields fixed."""

    kind: str
    """The name of the core in `CORES`."""
    fields: Mapping[str, Any]
    """Field of its configuration -> value."""
    description: str


CORES: Mapping[str, CoreEntry] = MappingProxyType(
    {
        "ttm": CoreEntry("ttm.policy.cores.ttm.machine:TokenTuringConfig", "Token Turing Machine"),
        "lstm": CoreEntry("ttm.policy.cores.lstm:LstmConfig", "LSTM, one for each token slot"),
        "transformer": CoreEntry(
            "ttm.policy.cores.causal_transformer:CausalTransformerConfig",
            "causal Transformer over the last ticks",
        ),
        "recurrent-transformer": CoreEntry(
            "ttm.policy.cores.recurrent_transformer:RecurrentTransformerConfig",
            "Transformer over state tokens and inputs",
        ),
        "mixer": CoreEntry(
            "ttm.policy.cores.mixer:TemporalMixerConfig",
            "MLP-Mixer over the tokens of the last ticks",
        ),
        "frame-stacking": CoreEntry(
            "ttm.policy.cores.frame_stacking:FrameStackingConfig",
            "Transformer over the tokens of the last ticks",
        ),
        "hourglass": CoreEntry(
            "ttm.policy.cores.hourglass.hourglass:HourglassConfig",
            "Transformer on a shortened sequence of ticks",
        ),
        "tlb": CoreEntry(
            "ttm.policy.cores.tlb.temporal_latent_bottleneck:TemporalLatentBottleneckConfig",
            "Temporal Latent Bottleneck",
        ),
    }
)
"""Name -> core. Checkpoints store the name."""

TTM = "ttm"
"""The default, and the core of checkpoints from before there were several."""

VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "none": Variant(
            TTM, MappingProxyType({"memory": False}), "ttm with its memory emptied at every tick"
        ),
    }
)
"""Name -> variant of a core."""

NAMES: tuple[str, ...] = (*CORES, *VARIANTS)
"""All names that `ttm train --core` and the studies accept."""


def core_descriptions() -> str:
    """Return all names with their descriptions, as one sentence for a help text."""
    entries: dict[str, CoreEntry | Variant] = {**CORES, **VARIANTS}
    return "; ".join(f"{name}: {entry.description}" for name, entry in entries.items())
