"""Periods on the wall clock, with a clock that the test sets."""

from __future__ import annotations

import pytest

from ttm_policy.simulator.episodes import Pace


def _run(pace: Pace, work_s: list[float]) -> float:
    """Wait for the end of each period, and then simulate for so long. Return the wall time."""
    now_s = 100.0
    for seconds in work_s:
        now_s = max(now_s, pace.next_end(now_s)) + seconds
    return now_s - 100.0


def test_simulating_and_rendering_come_off_the_waiting_time() -> None:
    pace = Pace(0.2)
    assert _run(pace, [0.03, 0.14, 0.0, 0.05] * 25) == pytest.approx(100 * 0.2 + 0.05)


def test_a_simulation_that_is_too_slow_does_not_catch_up() -> None:
    pace = Pace(0.2)
    assert _run(pace, [0.35] * 50) == pytest.approx(0.15 + 50 * 0.4)
    assert pace.next_end(500.0) == pytest.approx(500.05), "commands still have time to arrive"
    assert pace.next_end(500.06) == pytest.approx(500.25)


def test_waiting_for_the_policy_is_no_delay() -> None:
    pace = Pace(0.2)
    _run(pace, [0.01] * 3)
    pace.restart()
    assert pace.next_end(1000.0) == pytest.approx(1000.2)
