"""The uncertainty of success rates.

Wilson's interval is for one rate, McNemar's exact test for two policies on the same initial states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95


def wilson_interval(
    successes: int, episodes: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of rates that are compatible with `successes` of `episodes` (Wilson, 1927).

    It stays within [0, 1] and is useful at 0 of n and at n of n too. Without episodes it is [0, 1].
    """
    if not 0 <= successes <= episodes:
        raise ValueError(
            f"{successes} successes of {episodes} episodes: give a number from 0 to {episodes}"
        )
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / episodes
    scale = 1 + z**2 / episodes
    centre = (rate + z**2 / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + z**2 / (4 * episodes**2))
    # At the ends the closed form is exact except for rounding, which must not give -1e-17.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == episodes else centre + half
    return low, high


@dataclass(frozen=True)
class PairedTest:
    """The outcomes of two policies on the same initial states.

    Only the states on which they differ contribute to the test.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float
    """Two-sided: the probability that two equally good policies differ at least this much."""


def mcnemar_exact(first: Sequence[bool], second: Sequence[bool]) -> PairedTest:
    """Return McNemar's test with the exact binomial distribution.

    Element i of both sequences is the outcome from the same initial state. Raises `ValueError` if
    they differ in length.
    """
    pairs = list(zip(first, second, strict=True))
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    differing = only_first + only_second
    tail = (
        sum(math.comb(differing, k) for k in range(min(only_first, only_second) + 1)) / 2**differing
    )
    return PairedTest(
        both=sum(a and b for a, b in pairs),
        only_first=only_first,
        only_second=only_second,
        neither=sum(not a and not b for a, b in pairs),
        p_value=min(1.0, 2 * tail),
    )
