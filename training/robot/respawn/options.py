"""The options of `ttm bench respawn`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least


@dataclass(frozen=True)
class RespawnOptions:
    """Which episodes, and when the policy is killed."""

    task: str = "pick"
    """Task of the simulated kitchen; the first one if this is empty."""
    episodes: int = 50
    """Episodes with kills, and as many without."""
    first_seed: int = 0
    """Number of the first initial state."""
    latest_tick: int = 10
    """The policy is killed at a tick between 1 and this one."""
    seed: int = 0
    """Seed of these ticks."""
    checkpoint: Path | None = None
    """A .safetensors file; by default the policy that ships with the project."""
    patience_s: float = 600.0
    """The longest time that a killed policy may take to come back."""
    out: Path | None = None
    """Also keep both results there, in the folders `undisturbed` and `killed`."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "episodes", "latest_tick", "patience_s"))
        require_at_least(0, options(self, "first_seed", "seed"))
