"""`ttm bench faults`: the verdict on made-up trials. The nodes themselves run in tests/ros/faults."""

from __future__ import annotations

from typing import Any

import pytest

from ttm.policy.errors import UserError
from ttm.training.bench.faults import BenchFaultsCommand, lines

GOOD: dict[str, Any] = {
    "fault": "the clock stops",
    "lasted_s": 3.0,
    "moving_s": 0.6,
    "blind_moves": 0,
    "told": True,
    "stood": True,
    "recovered_s": 1.2,
}


def _missed(trials: list[dict[str, Any]], growth_mb: float | None = None) -> list[str]:
    """The names of the bars that are missed."""
    return [line.what for line in lines(trials, growth_mb, 0.8) if line.holds is False]


def test_good_trials_meet_every_bar() -> None:
    trials = [GOOD, {**GOOD, "fault": "a value is NaN", "recovered_s": 4.0}]
    assert _missed(trials, 0.3) == []
    values = {line.what: line.value for line in lines(trials, None, 0.8)}
    assert values["kinds of faults"] == 2
    assert values["longest to recover, s"] == 4.0
    assert values["growth, MB"] is None


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"blind_moves": 3, "moving_s": 1.2}, ["blind moves", "longest motion, s"]),
        ({"stood": False}, ["not at a stand"]),
        ({"told": False}, ["not told"]),
        ({"recovered_s": None}, ["dead ends"]),
    ],
)
def test_one_bad_trial_misses_its_bar(change: dict[str, Any], missed: list[str]) -> None:
    assert _missed([GOOD, {**GOOD, **change}, GOOD]) == missed


def test_a_growing_node_and_no_trials_at_all_miss_their_bars() -> None:
    assert _missed([GOOD], 5.0) == ["growth, MB"]
    assert _missed([]) == ["faults"]


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="minutes"):
        BenchFaultsCommand(minutes=0.0).run()
    with pytest.raises(UserError, match="slack-s"):
        BenchFaultsCommand(slack_s=-1.0).run()
