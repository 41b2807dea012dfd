"""The length of a training and its learning rate.

This module imports no torch, because the command line is built from `Budget`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Length of the training. It ends when the steps are done or the minutes have passed."""

    steps: int | None = None
    """Stop after this many optimiser steps, including those before --resume."""
    minutes: float | None = None
    """Stop after this many minutes of training, including those before --resume. Without --steps:
    60."""

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the portion of the budget that is used, in [0, 1]."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = elapsed_s / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))


@dataclass(frozen=True)
class WarmupCosine:
    """The learning rate as a function of the step and of the portion of the budget that is used.

    The warm-up is counted in steps, because Adam's moments need steps to settle; the cosine follows
    the budget.
    """

    peak: float
    """Learning rate after the warm-up."""
    warmup_steps: int = 100
    longest_warmup: float = 0.05
    """Portion of the budget after which the warm-up ends at the latest; this matters for short
    trainings."""
    floor: float = 0.02
    """Last learning rate, as a portion of the peak."""

    def learning_rate(self, step: int, progress: float) -> float:
        """Return the learning rate of a step (from 0) at `progress` in [0, 1] of the budget."""
        warmup = min(1.0, max((step + 1) / self.warmup_steps, progress / self.longest_warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
        return self.peak * warmup * (self.floor + (1 - self.floor) * cosine)
