"""The options of `ttm bench e-stop`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least


@dataclass(frozen=True)
class EStopOptions:
    """How often it is pressed, and on which policy."""

    presses: int = 50
    """How often it is pressed while the policy drives, and as often while an instruction is prepared."""
    seed: int = 0
    """Seed of the pauses between presses."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what each press took to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "presses"))
        require_at_least(0, options(self, "seed"))
