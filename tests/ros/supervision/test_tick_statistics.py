"""Figures of ticks, and the levels that they lead to."""

from __future__ import annotations

import math

import pytest

from ttm_policy.diagnostics import (
    ERROR,
    FEWEST,
    OK,
    THRESHOLDS,
    WARN,
    WINDOW,
    TickStatistics,
    judge,
)


def _run(statistics: TickStatistics, begins_s: list[float], tick_s: float = 0.02) -> None:
    for began_s in begins_s:
        statistics.begin(began_s)
        statistics.answer(began_s, began_s + tick_s, latency_s=0.05)


def test_figures_tell_rate_late_ticks_and_times() -> None:
    statistics = TickStatistics(period_s=0.1)
    assert not statistics.figures()
    assert statistics.memory_age_s(5.0) == math.inf
    begins = [0.1 * index for index in range(100)]
    begins[50:] = [begin + 0.06 for begin in begins[50:]]
    _run(statistics, begins)
    figures = statistics.figures()
    assert figures["rate_hz"] == pytest.approx(99 / begins[-1])
    assert figures["late_share"] == pytest.approx(1 / 99)
    assert figures["closest_ticks_ms"] == pytest.approx(100)
    assert figures["tick_p50_ms"] == pytest.approx(20)
    assert figures["tick_worst_ms"] == pytest.approx(20)
    assert figures["latency_p99_ms"] == pytest.approx(50)
    assert statistics.memory_age_s(begins[-1] + 1.02) == pytest.approx(1.0)


def test_a_pause_is_no_late_tick() -> None:
    statistics = TickStatistics(period_s=0.1)
    _run(statistics, [0.1 * index for index in range(FEWEST + 1)])
    assert statistics.is_late(100.0)
    statistics.pause()
    assert not statistics.is_late(100.0)
    _run(statistics, [100.0 + 0.1 * index for index in range(FEWEST)])
    figures = statistics.figures()
    assert figures["late_share"] == 0.0


def test_old_ticks_are_forgotten() -> None:
    statistics = TickStatistics(period_s=0.1)
    _run(statistics, [float(index) for index in range(50)], tick_s=0.9)
    _run(statistics, [50 + 0.1 * index for index in range(WINDOW + 1)])
    figures = statistics.figures()
    assert (figures["late_share"], figures["tick_worst_ms"]) == (0.0, pytest.approx(20))


def test_levels_follow_the_declared_thresholds() -> None:
    assert judge({"late_share": 0.0, "tick_p99_share": 0.3}) == (OK, "")
    for name, (warn, error) in THRESHOLDS.items():
        assert judge({name: warn}) == (OK, "")
        assert judge({name: error})[0] == WARN
        level, text = judge({name: error * 1.01})
        assert level == ERROR
        assert text.startswith(f"{name} is ")
    assert judge({"late_share": 0.1, "tick_p99_share": 9.0})[1].startswith("tick_p99_share")
