"""The result of drift runs: means by tick number, ratios with 95 % intervals, and a verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ttm.policy.errors import UserError
from ttm.training.bench.drift.bootstrap import Estimate, Floats, Resampled, estimate
from ttm.training.bench.drift.measure import ChainRun, DriftRuns

EARLY_TICKS, LATE_TICKS = 20, 100
"""The ticks that are compared: the last ones of a chain, and the first ones at which all chains have left
their first episode. These are the same tick numbers in all chains, so that both sets of ticks lie
anywhere in their episodes."""
NEGLIGIBLE = 1.1
"""Growth by less than this factor, with confidence, is no drift."""


@dataclass(frozen=True)
class Bin:
    """Successive ticks of all chains."""

    first: int
    """The first tick."""
    stop: int
    """The end (exclusive)."""
    norm: float
    """Mean norm of the tokens of the memory."""
    norm_deviation: float
    """Standard error of `norm`."""
    error: float
    """Normalised action error: root mean square, in standard deviations of the actions in the data."""
    error_deviation: float
    """Standard error of `error`."""


@dataclass(frozen=True)
class DriftSummary:
    """How the errors of one policy and the norm of its memory change as the memory ages."""

    kept: list[Bin]
    control: list[Bin]
    growth: Estimate
    """Error in the last ticks over that in the first ones after the first episode, with the memory kept."""
    control_growth: Estimate
    """The same ratio with the memory reset at the seams: the effect of the choice of ticks alone."""
    drift: Estimate
    """`growth` over `control_growth`: 1 if an old memory is as good as a young one."""
    norm_growth: Estimate
    """The ratio of the norms of the memory at the same ticks, with the memory kept."""
    cost: Estimate
    """After the first episode: the error with the memory kept over that with it reset, at any age."""

    @property
    def verdict(self) -> str:
        """Whether the memory drifts, in a word.

        A memory whose norm grows drifts, even if the actions are still unaffected, or are lost already.
        Values that are no longer numbers are drift, too.
        """
        if not self.norm_growth.low <= NEGLIGIBLE:
            return "drifts"
        if self.drift.high < NEGLIGIBLE:
            return "holds"
        return "undecided (take more --chains)" if self.drift.low <= 1 else "drifts"

    def in_words(self) -> str:
        """Return the verdict and the ratios behind it in one line."""
        return (
            f"{self.verdict}: error of the last {LATE_TICKS} ticks {self.drift} times that of the first "
            f"{EARLY_TICKS} after the first episode, against the control; norm {self.norm_growth} times"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with None in place of infinity and NaN, which JSON does not have."""
        plain: dict[str, Any] = _finite({"verdict": self.verdict, **asdict(self)})
        return plain


def summarize(runs: DriftRuns, bin_ticks: int, seed: int = 0) -> DriftSummary:
    """Summarise runs in bins of `bin_ticks` ticks.

    seed: of the resampling of the chains.

    Raises `UserError` if the chains are too short for the comparison.
    """
    chains, ticks = runs.seams.shape
    resampled = Resampled(chains, seed)
    # Ticks at which all chains have left their first episode.
    after_first = int((runs.seams.cumsum(axis=1) > 0).all(axis=0).sum())
    compared = EARLY_TICKS + LATE_TICKS
    if after_first < compared:
        raise UserError(
            f"of {ticks} ticks, {after_first} are left when all chains have left their first episode, "
            f"and {compared} are compared; give {ticks - after_first + compared} --ticks or more"
        )
    after = slice(ticks - after_first, ticks)
    early, late = slice(after.start, after.start + EARLY_TICKS), slice(ticks - LATE_TICKS, ticks)

    def ratio(top: tuple[Floats, slice], bottom: tuple[Floats, slice]) -> Floats:
        """Each argument: (values, at which ticks). Returns one ratio for each resampling."""
        above, below = (resampled.means(values[:, at].mean(axis=1)) for values, at in (top, bottom))
        return above / below

    kept, control, norms = runs.kept.errors, runs.control.errors, runs.kept.norms
    growth, control_growth = (np.sqrt(ratio((e, late), (e, early))) for e in (kept, control))
    return DriftSummary(
        kept=_bins(runs.kept, bin_ticks, resampled),
        control=_bins(runs.control, bin_ticks, resampled),
        growth=estimate(growth),
        control_growth=estimate(control_growth),
        drift=estimate(growth / control_growth),
        norm_growth=estimate(ratio((norms, late), (norms, early))),
        cost=estimate(np.sqrt(ratio((kept, after), (control, after)))),
    )


def _finite(data: Any) -> Any:
    """Replace infinity and NaN in nested data by None."""
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _bins(run: ChainRun, bin_ticks: int, resampled: Resampled) -> list[Bin]:
    ticks = run.errors.shape[1]
    bins = []
    for first in range(0, ticks, bin_ticks):
        stop = min(first + bin_ticks, ticks)
        norm = resampled.means(run.norms[:, first:stop].mean(axis=1))
        error = np.sqrt(resampled.means(run.errors[:, first:stop].mean(axis=1)))
        figures = (float(f) for value in (norm, error) for f in (value[0], value[1:].std()))
        bins.append(Bin(first, stop, *figures))
    return bins
