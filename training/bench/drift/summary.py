"""What the runs of `drift_measure` say: by tick number, and in one line.

Uncertainty is from resampling the chains (bootstrap, Efron 1979).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ttm.policy.errors import UserError
from ttm.training.bench.drift.measure import DriftRuns, Floats, Run

EARLY_TICKS, LATE_TICKS = 20, 100
"""Compared are a chain's last so many ticks and the first so many at which all chains have left their first episode:
the same tick numbers in all chains, so that both lie anywhere in their episodes."""
NEGLIGIBLE = 1.1
"""What grows by less than this factor, with confidence, does not drift."""
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


@dataclass(frozen=True)
class Bin:
    """Some ticks of all chains."""

    first: int
    stop: int
    """First tick, and first tick no more."""
    norm: float
    norm_deviation: float
    """Mean norm of the memory's tokens, and its standard error."""
    error: float
    error_deviation: float
    """Normalised action error (root mean square, in deviations of the data's actions), and its standard error."""


@dataclass(frozen=True)
class DriftSummary:
    """How one policy fares as its memory ages."""

    kept: list[Bin]
    control: list[Bin]
    growth: Estimate
    """Error in the last ticks over that in the first ones after the first episode, with the memory kept."""
    control_growth: Estimate
    """The same with the memory reset at the seams: what the choice of ticks makes of it."""
    drift: Estimate
    """`growth` over `control_growth`: 1 if an old memory is as good as a young one."""
    norm_growth: Estimate
    """The same ratio of the memory's norm, kept."""
    cost: Estimate
    """After the first episode: the error with the memory kept over that with it reset, whatever its age."""

    @property
    def verdict(self) -> str:
        """In a word. A memory whose norm grows drifts, even while the actions bear it, or once they no longer can.

        What is not a number any more drifts too.
        """
        if not self.norm_growth.low <= NEGLIGIBLE:
            return "drifts"
        if self.drift.high < NEGLIGIBLE:
            return "holds"
        return "undecided (take more --chains)" if self.drift.low <= 1 else "drifts"

    def in_words(self) -> str:
        """In one line."""
        return (
            f"{self.verdict}: error of the last {LATE_TICKS} ticks {self.drift} times that of the first "
            f"{EARLY_TICKS} after the first episode, against the control; norm {self.norm_growth} times"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; None for what is not a finite number, which JSON does not have."""
        plain: dict[str, Any] = _finite({"verdict": self.verdict, **asdict(self)})
        return plain


class Resampled:
    """Means over the chains, and over as many chains drawn from them with replacement, again and again."""

    def __init__(self, chains: int, seed: int) -> None:
        drawn = np.random.default_rng(seed).integers(chains, size=(RESAMPLINGS, chains))
        self._chains = np.concatenate([np.arange(chains)[None], drawn])

    def means(self, values: Floats) -> Floats:
        """values: (C,) -> (1 + RESAMPLINGS,), first that of the chains themselves."""
        means: Floats = values[self._chains].mean(axis=1)
        return means


def summarize(runs: DriftRuns, bin_ticks: int, seed: int = 0) -> DriftSummary:
    """Bins of `bin_ticks` ticks. `UserError` if the chains are too short for what is compared."""
    chains, ticks = runs.seams.shape
    resampled = Resampled(chains, seed)
    begun = (
        (runs.seams.cumsum(axis=1) > 0).all(axis=0).sum()
    )  # ticks at which all have left their first episode
    if begun < EARLY_TICKS + LATE_TICKS:
        raise UserError(
            f"of {ticks} ticks, {begun} are left when all chains have left their first episode, and "
            f"{EARLY_TICKS + LATE_TICKS} are compared; give {ticks - begun + EARLY_TICKS + LATE_TICKS} --ticks or more"
        )
    after = slice(ticks - begun, ticks)
    early, late = slice(after.start, after.start + EARLY_TICKS), slice(ticks - LATE_TICKS, ticks)

    def ratio(top: tuple[Floats, slice], bottom: tuple[Floats, slice]) -> Floats:
        """Of (values, at which ticks), one for each resampling."""
        above, below = (resampled.means(values[:, at].mean(axis=1)) for values, at in (top, bottom))
        return above / below

    kept, control, norms = runs.kept.errors, runs.control.errors, runs.kept.norms
    growth, control_growth = (np.sqrt(ratio((e, late), (e, early))) for e in (kept, control))
    return DriftSummary(
        kept=_bins(runs.kept, bin_ticks, resampled),
        control=_bins(runs.control, bin_ticks, resampled),
        growth=_estimate(growth),
        control_growth=_estimate(control_growth),
        drift=_estimate(growth / control_growth),
        norm_growth=_estimate(ratio((norms, late), (norms, early))),
        cost=_estimate(np.sqrt(ratio((kept, after), (control, after)))),
    )


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _estimate(samples: Floats) -> Estimate:
    """samples: (1 + RESAMPLINGS,), as `Resampled` gives them."""
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return Estimate(float(samples[0]), float(low), float(high))


def _bins(run: Run, bin_ticks: int, resampled: Resampled) -> list[Bin]:
    ticks = run.errors.shape[1]
    bins = []
    for first in range(0, ticks, bin_ticks):
        stop = min(first + bin_ticks, ticks)
        norm = resampled.means(run.norms[:, first:stop].mean(axis=1))
        error = np.sqrt(resampled.means(run.errors[:, first:stop].mean(axis=1)))
        figures = (float(f) for value in (norm, error) for f in (value[0], value[1:].std()))
        bins.append(Bin(first, stop, *figures))
    return bins
