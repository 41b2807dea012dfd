"""What a policy is told of the time until its command is in force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ttm_policy.session import TickRecord

NOW_NS = 100_000_000_000


def record(*, lockstep: bool) -> TickRecord:
    loop = MagicMock()
    loop.runner.spec.control_dt_s = 0.2
    return TickRecord(
        MagicMock(), loop, SimpleNamespace(lockstep=lockstep), MagicMock(), MagicMock()
    )


def question(age_s: float) -> Any:
    seen = SimpleNamespace(oldest_ns=NOW_NS - round(age_s * 1e9))
    return SimpleNamespace(wall_s=5.0, observation=seen)


def test_the_delay_is_the_age_of_the_input_and_the_usual_time_of_a_tick() -> None:
    kept = record(lockstep=False)
    assert kept.begun(question(0.05), NOW_NS) == pytest.approx(0.05)
    for seconds in (9.0, *[0.03] * 6, 9.0, *[0.03] * 4):  # outliers do not count
        kept.statistics.answer(5.0, 5.0 + seconds, 0.1)
    assert kept.begun(question(0.07), NOW_NS) == pytest.approx(0.1)


def test_in_lockstep_nothing_is_late() -> None:
    assert record(lockstep=True).begun(question(0.05), NOW_NS) == 0.0
