"""How regular ticks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ttm.policy.errors import UserError

LATE = 1.1
"""A tick is late if more than this many periods passed since the one before."""
FEWEST = 10
"""There are no figures of fewer ticks."""


@dataclass(frozen=True)
class Regularity:
    """Figures of the periods between ticks, in milliseconds."""

    ticks: int
    rate_hz: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    closest_ms: float
    late_share: float


def regularity(arrivals_s: Sequence[float], period_s: float) -> Regularity:
    """Return the figures of ticks that arrived at these times. Raises `UserError` for too few."""
    if len(arrivals_s) < FEWEST:
        raise UserError(
            f"only {len(arrivals_s)} actions came from policy_node; see its messages above, "
            "or count for longer with --minutes"
        )
    periods_ms = np.diff(np.asarray(arrivals_s)) * 1e3
    return Regularity(
        ticks=len(arrivals_s),
        rate_hz=float(1e3 / periods_ms.mean()),
        p50_ms=float(np.median(periods_ms)),
        p99_ms=float(np.percentile(periods_ms, 99)),
        worst_ms=float(periods_ms.max()),
        closest_ms=float(periods_ms.min()),
        late_share=float((periods_ms > LATE * period_s * 1e3).mean()),
    )
