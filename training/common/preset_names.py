"""The names of the presets of a policy, for command lines that must not load torch."""

from __future__ import annotations

from typing import Literal

PresetName = Literal["tiny", "base", "paper"]
"""The keys of `ttm.policy.network.policy.PRESETS`."""
