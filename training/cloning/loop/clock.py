"""The time of a training, by which all of its processes go."""

from __future__ import annotations

import time

import torch

from ttm.training.cloning.processes.group import Processes
from ttm.training.common.interruption import Interruption


class Clock:
    """Tells how long a training has run, and how long ago it was saved.

    Where several processes train together, all of them have the time of the first, as it was when
    they last agreed, so that each of them makes the same decisions.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.start(0.0)

    def start(self, elapsed_s: float) -> None:
        """Start the clock at `elapsed_s`, as if the training had just been saved."""
        now = time.monotonic()
        self._begun_s, self._saved_s = now - elapsed_s, now
        self._agreed = elapsed_s, 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the training began."""
        return self._times()[0]

    @property
    def since_saved_s(self) -> float:
        """Seconds since the training was saved, or started."""
        return self._times()[1]

    def saved(self) -> None:
        """Note that the training has been saved now."""
        self._saved_s = time.monotonic()
        self._agreed = self._agreed[0], 0.0

    def agree(self, interruption: Interruption) -> None:
        """Take over the time of the first process, and the signal that any process has received."""
        if self._processes.count == 1:
            return
        times = self._read() if self._processes.first else (0.0, 0.0)
        signals = [float(interruption.signal_number == each) for each in Interruption.SIGNALS]
        told = self._processes.sum(torch.tensor([*times, *signals], dtype=torch.float64)).tolist()
        self._agreed = told[0], told[1]
        received = zip(Interruption.SIGNALS, told[2:], strict=True)
        interruption.signal_number = next((each for each, count in received if count), None)

    def _times(self) -> tuple[float, float]:
        return self._read() if self._processes.count == 1 else self._agreed

    def _read(self) -> tuple[float, float]:
        now = time.monotonic()
        return now - self._begun_s, now - self._saved_s
