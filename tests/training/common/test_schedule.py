from __future__ import annotations

import pytest

from ttm.training.options import Budget, OptimizerConfig


def test_a_budget_ends_with_its_steps_or_its_minutes_whichever_is_first() -> None:
    budget = Budget(steps=10, minutes=1)
    assert budget.progress(5, 0) == 0.5
    assert budget.progress(5, 45) == 0.75
    assert budget.progress(9, 59) < 1
    assert budget.progress(10, 0) == 1
    assert budget.progress(0, 61) == 1


def test_one_limit_is_enough() -> None:
    assert Budget(steps=4).progress(1, 1e9) == 0.25
    assert Budget(minutes=2).progress(10**9, 60) == 0.5


def test_the_rate_rises_to_the_peak_and_falls_to_the_floor() -> None:
    schedule = OptimizerConfig(warmup_steps=10, floor=0.1)
    rates = [schedule.learning_rate(1.0, step, step / 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[500] == pytest.approx(0.55)
    assert rates[1000] == pytest.approx(0.1)


def test_a_short_training_warms_up_in_its_first_twentieth() -> None:
    schedule = OptimizerConfig()
    assert schedule.learning_rate(1.0, 4, 0.05) > 0.98
