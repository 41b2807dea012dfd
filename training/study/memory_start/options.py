"""Options of `ttm study memory-start`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.training.cloning.settings.groups import MemoryStartConfig


@dataclass(frozen=True)
class MemoryStartOptions:
    """The material, the trainings and the measurements of the study."""

    data: tuple[str, ...]
    """Demonstrations of the checkpoint's robot, with the masks `train` and `valid`."""
    out: Path = Path("runs/memory_start")
    """Folder for the figures and the pictures."""
    checkpoint: Path = Path("shipped")
    """Policy whose vision is used: a .safetensors file, or `shipped`."""
    core_options: tuple[str, ...] = ()
    """Changes to the checkpoint's core, as in `ttm train`."""
    seeds: int = 3
    """Trainings of each kind."""
    steps: int = 1000
    """Optimiser steps of each training."""
    window: int = 8
    """Ticks in a training window."""
    burn_in: int = MemoryStartConfig.burn_in
    """Ticks that run before a window, for the way burn-in."""
    batch_size: int = 16
    """Windows in a batch."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    ticks: int = 300
    """Length of the chains of episodes on which drift is measured."""
    chains: int = 32
    """Number of these chains."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "data"))
        counts = ("seeds", "steps", "window", "burn_in", "batch_size", "ticks", "chains")
        require_at_least(1, options(self, *counts))
        require_above_0(options(self, "learning_rate"))
