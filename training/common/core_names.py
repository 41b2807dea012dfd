"""The names of the temporal cores, for command lines: `ttm.policy.cores.registry` has them too, but loads torch."""

from __future__ import annotations

from typing import Literal

CoreName = Literal[
    "ttm",
    "none",
    "lstm",
    "transformer",
    "recurrent-transformer",
    "mixer",
    "frame-stacking",
    "tlb",
    "hourglass",
]
"""Those of `ttm.policy.cores.registry.NAMES`."""
