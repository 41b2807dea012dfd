"""The learning rate over a training: linear warm-up, then half a cosine down to a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How long a training lasts: until `steps` are done or `minutes` have passed, whichever comes first."""

    steps: int | None = None
    minutes: float | None = None

    def progress(self, step: int, elapsed_s: float) -> float:
        """The part of the budget that is used, in [0, 1]."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = elapsed_s / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def spent(self, step: int, elapsed_s: float) -> bool:
        """Whether the training is over."""
        return self.progress(step, elapsed_s) >= 1.0


@dataclass(frozen=True)
class WarmupCosine:
    """Warm-up is counted in steps (Adam's moments need steps to settle), the cosine in the budget's progress."""

    peak: float
    warmup_steps: int = 100
    longest_warmup: float = 0.05
    """Warm-up ends at this progress at the latest, for short trainings."""
    floor: float = 0.02
    """The last learning rate, as a part of the peak."""

    def learning_rate(self, step: int, progress: float) -> float:
        """The rate of the step numbered `step` (from 0) at `progress` in [0, 1] of the budget."""
        warmup = min(1.0, max((step + 1) / self.warmup_steps, progress / self.longest_warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
        return self.peak * warmup * (self.floor + (1 - self.floor) * cosine)
