"""95 % intervals by resampling the chains (bootstrap, Efron 1979)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
RESAMPLINGS = 2000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = ".2f" if self.high < 100 else ".3g"
        return f"{self.value:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


class Resampled:
    """Means over the chains, and over equally many chains drawn from them with replacement, repeatedly."""

    def __init__(self, chains: int, seed: int) -> None:
        drawn = np.random.default_rng(seed).integers(chains, size=(RESAMPLINGS, chains))
        self._chains = np.concatenate([np.arange(chains)[None], drawn])

    def means(self, values: Floats) -> Floats:
        """values: (C,) -> (1 + RESAMPLINGS,); the first mean is that of the chains themselves."""
        means: Floats = values[self._chains].mean(axis=1)
        return means


def estimate(samples: Floats) -> Estimate:
    """Return the first of `samples` with the interval of the others.

    samples: (1 + RESAMPLINGS,), a function of what `Resampled.means` returns.
    """
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return Estimate(float(samples[0]), float(low), float(high))
