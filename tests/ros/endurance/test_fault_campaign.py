"""Campaigns of faults beside a made-up robot on the clock of the test: what is drawn, and what is noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fault_campaign
import pytest
from failing_robot import Fault
from fault_campaign import FaultCampaign, Trial, Trials, lines

from ttm.policy import UserError
from ttm.training.bench.common import Line

RUNNING = "running"
STOPPED = (
    "stopped: observations stayed away; reset the memory, or deactivate and activate, to go on"
)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Robot:
    """Is commanded to move until `stops_after_s` into a fault, and again once it is repaired."""

    def __init__(self, clock: Clock, *, stops_after_s: float = 0.5, comes_back: bool = True):
        self._clock, self._stops_after_s, self._comes_back = clock, stops_after_s, comes_back
        self._broken_s: float | None = None
        self._stopped = False
        self.calls: list[str] = []
        self.late_until_s = 0.0
        """Until then the node says that a camera is late, whatever else is broken."""
        self.begun_s: list[float] = []

    def break_down(self) -> None:
        self._broken_s, self._stopped = self._clock.now_s, True
        self.begun_s.append(self._clock.now_s)

    def repair(self) -> None:
        self._broken_s = None

    def forget(self) -> None:
        pass

    def call(self, service: str) -> None:
        self.calls.append(service)
        self._stopped = not self._comes_back

    @property
    def message(self) -> str:
        if self._clock.now_s < self.late_until_s:
            return "waiting: head is late"
        return STOPPED if self._stopped else RUNNING

    @property
    def runs(self) -> bool:
        return self.message == RUNNING

    @property
    def moved_s(self) -> list[float]:
        if self._broken_s is not None:
            last_s = min(self._clock.now_s, self._broken_s + self._stops_after_s)
            return [self._broken_s + 0.1, last_s]
        return [] if self._stopped else [self._clock.now_s]

    @property
    def moved_at_s(self) -> float:
        return max(self.moved_s, default=0.0)

    @property
    def stands(self) -> bool:
        return self._broken_s is not None and self.moved_at_s < self._clock.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(fault_campaign, "time", made)
    breaks: Callable[[Any], Any] = lambda robot: robot.break_down()  # noqa: E731
    table = {name: Fault(breaks, "stopped") for name in ("first", "second", "third")}
    monkeypatch.setattr(fault_campaign, "FAULTS", table)
    return made


def _run(robot: Robot, seed: int = 0) -> Trials:
    run = Trials(robot, blind_after_s=0.8, seed=seed)  # type: ignore[arg-type]
    run.run(100.0)
    return run


def test_faults_come_every_period_and_are_those_of_the_seed(clock: Clock) -> None:
    begun_s = clock.now_s
    trials = _run(Robot(clock)).trials
    assert len(trials) == 5
    assert clock.now_s - begun_s == pytest.approx(100.0, abs=1.0)
    assert len({trial.lasted_s for trial in trials}) == 5
    assert _run(Robot(clock)).trials[0].fault == trials[0].fault
    assert [t.lasted_s for t in _run(Robot(clock), seed=1).trials] != [t.lasted_s for t in trials]


def test_a_robot_that_stops_in_time_and_comes_back_is_noted_so(clock: Clock) -> None:
    robot = Robot(clock)
    for trial in _run(robot).trials:
        assert (trial.blind_moves, trial.told, trial.stood) == (0, True, True)
        assert trial.moving_s == pytest.approx(0.5)
        assert trial.recovered_s == pytest.approx(1.0, abs=0.1)
    assert robot.calls == ["reset_memory"] * 5, "what the message asked for"


def test_moves_that_come_too_late_are_blind(clock: Clock) -> None:
    trials = _run(Robot(clock, stops_after_s=1.5)).trials
    assert [trial.blind_moves for trial in trials] == [1] * 5
    never = _run(Robot(clock, stops_after_s=100.0)).trials
    assert not any(trial.stood for trial in never)


def test_a_dead_end_ends_the_campaign(clock: Clock) -> None:
    trials = _run(Robot(clock, comes_back=False)).trials
    assert [trial.recovered_s for trial in trials] == [None]


def test_a_fault_waits_until_the_policy_runs(clock: Clock) -> None:
    robot = Robot(clock)
    robot.late_until_s = clock.now_s + 8.0
    trials = _run(robot).trials
    assert robot.begun_s[0] == pytest.approx(robot.late_until_s, abs=0.1)
    assert all(trial.told for trial in trials)
    assert len(trials) == 5


def test_a_policy_that_does_not_run_before_a_fault_is_a_dead_end(clock: Clock) -> None:
    robot = Robot(clock)
    robot.late_until_s = clock.now_s + 100.0
    assert [trial.recovered_s for trial in _run(robot).trials] == [None]
    assert not robot.begun_s


GOOD: dict[str, Any] = {
    "fault": "the clock stops",
    "lasted_s": 3.0,
    "moving_s": 0.6,
    "blind_moves": 0,
    "told": True,
    "stood": True,
    "recovered_s": 1.2,
}


def _lines(trials: list[dict[str, Any]], growth_mb: float | None = None) -> list[Line]:
    return lines([Trial(**trial) for trial in trials], growth_mb, 0.8)


def _missed(trials: list[dict[str, Any]], growth_mb: float | None = None) -> list[str]:
    """The names of the bars that are missed."""
    return [line.what for line in _lines(trials, growth_mb) if line.holds is False]


def test_good_trials_meet_every_bar() -> None:
    trials = [GOOD, {**GOOD, "fault": "a value is NaN", "recovered_s": 4.0}]
    assert _missed(trials, 0.3) == []
    values = {line.what: line.value for line in _lines(trials)}
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
        FaultCampaign(minutes=0.0).check()
    with pytest.raises(UserError, match="slack-s"):
        FaultCampaign(slack_s=-1.0).check()
