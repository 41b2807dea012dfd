"""The rule of freshness, which `PolicyRunner` and the control loop of the ROS node share."""

from __future__ import annotations

import pytest

from ttm.policy.errors import StaleObservation
from ttm.policy.snapshot import require_fresh


@pytest.mark.parametrize("age_s", [0.0, 0.5, -0.5])
def test_ages_within_the_limit_pass(age_s: float) -> None:
    require_fresh(age_s, 0.5)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (0.51, "0.510 s old"),
        (-0.51, "0.510 s ahead of the clock"),
        (float("inf"), "inf s old"),
        (float("nan"), "nan s old"),
    ],
)
def test_old_future_and_undefined_ages_are_refused(age_s: float, words: str) -> None:
    with pytest.raises(StaleObservation, match=words):
        require_fresh(age_s, 0.5)
