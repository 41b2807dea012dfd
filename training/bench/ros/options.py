"""The options of `ttm bench ros`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_above_0


@dataclass(frozen=True)
class RosOptions:
    """What runs, how fast and for how long."""

    minutes: float = 10.0
    """How long ticks are counted, after the start."""
    rate_hz: float = 10.0
    """Ticks per second that are asked of the policy, whatever rate it was trained at."""
    sensors_hz: float = 30.0
    """Messages per second of each made-up sensor."""
    checkpoint: Path | None = None
    """A .safetensors file; by default the policy that ships with the project."""
    contract: Path | None = None
    """YAML file of the robot's topics; by default that of the simulated robot."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "minutes", "rate_hz", "sensors_hz"))
