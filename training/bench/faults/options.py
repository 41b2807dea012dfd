"""The options of `ttm bench faults`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_above_0, require_at_least


@dataclass(frozen=True)
class FaultsOptions:
    """How long faults come, and which."""

    minutes: float = 60.0
    """How long faults come, from the first motion on."""
    seed: int = 0
    """Seed of the faults, of when they begin and how long they last."""
    slack_s: float = 0.1
    """What a stop may take beyond max_age_s and a tick: for a computer that is busy with other work."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what happened in each fault to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "minutes"))
        require_at_least(0, options(self, "seed", "slack_s"))
