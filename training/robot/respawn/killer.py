"""Kills a policy's process in mid-episode."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from ttm.policy.errors import UserError
from ttm.policy.run.snapshot import snapshot_from_bytes


class Killer:
    """Kills a process once in each episode, at a tick drawn from 1 to `latest_tick` by a seed.

    It learns the ticks from the file in which the policy keeps its memory. An episode that is over before its
    tick comes is spared.
    """

    def __init__(self, memory: Path, *, seed: int, latest_tick: int):
        self._memory, self._latest_tick = memory, latest_tick
        self._rng = np.random.default_rng(seed)
        self._last_tick: int | None = None
        self._kill_at: int | None = None
        self.kills = 0

    def look(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process if it is time."""
        tick = self._saved_tick()
        if tick is not None and self.is_due(tick):
            process.kill()
            process.wait()
            self.kills += 1

    def is_due(self, tick: int) -> bool:
        """Return whether to kill now. tick: that of the memory, which begins at 0 in each episode."""
        if self._last_tick is None or tick < self._last_tick:
            self._kill_at = int(self._rng.integers(1, self._latest_tick + 1))
        self._last_tick = tick
        if self._kill_at is None or tick < self._kill_at:
            return False
        self._kill_at = None
        return True

    def _saved_tick(self) -> int | None:
        try:
            return int(snapshot_from_bytes(self._memory.read_bytes())["tick"])
        except (OSError, UserError):
            return None
