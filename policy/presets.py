"""The configuration of the policy, and presets of three sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from ttm.policy.config import ActionHeadConfig, VisionConfig
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.language import EMBEDDING_SIZE, LANGUAGE_MODEL

SIGHT_CELLS = 16
"""Cells along each side of a frame, unless a sight memory is given another number."""


@dataclass(frozen=True)
class PolicyConfig:
    """All that is needed to build the network, except for the `PolicySpec`."""

    width: int = 128
    """D, the width of all tokens."""
    tokens_per_camera: int = 6
    """K, the tokens to which the feature map of each camera is summarised."""
    sight_tokens: int = 0
    """J, the selectors of the `SightMemory` of the first camera, each of which makes three tokens a
    tick; 0 for a policy without one."""
    sight_cells: int = SIGHT_CELLS
    """Cells along each side of a frame as the `SightMemory` sees it. Its weights do not depend on it."""
    chunk: int = 1
    """K, the actions that are predicted at each tick: its own and those of the K - 1 ticks after it
    (Zhao et al. 2023)."""
    relative: tuple[str, ...] = ()
    """Parts of the action that are predicted relative to what is measured; see `RelativeActions`."""
    absolute: tuple[str, ...] = ()
    """Displacements that are predicted as positions; see `RelativeActions`."""
    longest_delay_s: float = 0.0
    """The longest time from an observation until its command is in force that the policy was trained
    for, in seconds. Above 0 that time is an input of each tick."""
    language_size: int = 128
    """Width of the code of the instruction that FiLM sees."""
    image_size: int = 64
    """Pixels a side of the frames where data and robot leave it open. The spec decides."""
    language_model: str = LANGUAGE_MODEL
    """The sentence-transformers model that embeds instructions."""
    embedding_size: int = EMBEDDING_SIZE
    """L, the values of an embedding of an instruction."""
    vision: VisionConfig = field(default_factory=VisionConfig)
    core: CoreConfig = field(default_factory=TokenTuringConfig)
    head: ActionHeadConfig = field(default_factory=ActionHeadConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = {**asdict(self), "core": core_to_dict(self.core)}
        # So that other versions read the checkpoints that do without these:
        later = {"relative": (), "absolute": (), "longest_delay_s": 0.0, "sight_cells": SIGHT_CELLS}
        return {
            name: value for name, value in data.items() if name not in later or value != later[name]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyConfig:
        """Read the result of `to_dict`.

        Raises `TypeError` or `KeyError` if another version of the code wrote `data`.
        """
        parts: dict[str, Any] = {
            "vision": VisionConfig(**data["vision"]),
            "core": core_from_dict(data["core"]),
            "head": ActionHeadConfig(**data["head"]),
            "relative": tuple(data.get("relative", ())),
            "absolute": tuple(data.get("absolute", ())),
        }
        return cls(**{**data, **parts})


PRESETS: Mapping[str, PolicyConfig] = MappingProxyType(
    {
        "tiny": PolicyConfig(
            vision=VisionConfig(
                width_coefficient=0.5, depth_coefficient=1.0, reduction=8, norm="group"
            ),
        ),
        "base": PolicyConfig(
            width=256,
            tokens_per_camera=8,
            language_size=256,
            image_size=224,
            vision=VisionConfig(reduction=32),
            core=TokenTuringConfig(
                memory_size=32, process_size=16, num_layers=4, num_heads=8, mlp_size=1024
            ),
            head=ActionHeadConfig(hidden_size=512),
        ),
        "paper": PolicyConfig(
            width=512,
            tokens_per_camera=44,
            language_size=512,
            image_size=300,
            vision=VisionConfig(model="efficientnet-b3", reduction=32),
            core=TokenTuringConfig(
                memory_size=96, process_size=16, num_layers=8, num_heads=8, mlp_size=2048
            ),
            head=ActionHeadConfig(hidden_size=512),
        ),
    }
)
"""Name -> configuration. The names are those of `PresetName`."""
