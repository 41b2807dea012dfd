"""What becomes of goals, without ROS: the time and what carries them out are the test's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from ttm.policy import UserError
from ttm_policy import goals
from ttm_policy.goals import GoalKeeper, GoalReport, GoalState
from ttm_policy.parameters import PolicyParameters

CAN, BOX = "pick up the red can", "pick up the blue box"


class Episode:
    """Stands for an `EpisodeControl`. `ready` answers what began last, as the network's thread does later."""

    def __init__(self) -> None:
        self.instruction, self.obstacle = "", ""
        self.told: list[str] = []
        self.ready: Callable[[str], object] = lambda _: None

    def begin(self, instruction: str, then: Callable[[str], object], *, goal: bool) -> None:
        assert goal
        self.instruction, self.ready = instruction, then
        self.told.append("begin")

    def rest(self, why: str) -> None:
        self.told.append(f"rest: {why}")


@pytest.fixture
def episode() -> Episode:
    return Episode()


@pytest.fixture
def reports() -> list[GoalReport]:
    return []


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the steady clock, which the test sets."""
    time_s = [100.0]
    monkeypatch.setattr(goals.time, "monotonic", lambda: time_s[0])
    return time_s


@pytest.fixture
def keeper(episode: Episode, reports: list[GoalReport], now_s: list[float]) -> GoalKeeper:
    parameters = PolicyParameters(stop_after_s=1.6)
    made = GoalKeeper(episode, parameters, period_s=0.2)  # type: ignore[arg-type]
    made.listeners.append(reports.append)
    return made


def test_a_goal_begins_ticks_and_succeeds_when_the_episode_says_so(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport], now_s: list[float]
) -> None:
    assert keeper.request(f" {CAN} ").instruction == CAN
    episode.ready("")
    now_s[0] += 0.2
    keeper.ticked(done=False)
    now_s[0] += 0.2
    keeper.ticked(done=True)
    keeper.ticked(done=True)  # an answer that was on its way
    seen = [(r.state.value, r.tick, r.elapsed_s) for r in reports]
    assert seen == [("executing", 0, 0.0), ("executing", 1, 0.2), ("succeeded", 2, 0.4)]
    assert episode.told == ["begin", "rest: goal 1 succeeded"]
    assert json.loads(reports[-1].to_json()) == {
        "goal": 1,
        "instruction": CAN,
        "state": "succeeded",
        "reason": "",
        "tick": 2,
        "elapsed_s": 0.4,
    }


def test_a_second_goal_is_refused_or_preempts(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport]
) -> None:
    keeper.request(CAN)
    first = episode.ready
    with pytest.raises(UserError, match=r"goal 1 is being executed .*; cancel it first"):
        keeper.request(BOX)
    keeper.parameters = PolicyParameters(preempt_goals=True)
    assert keeper.request(BOX).goal == 2
    first("another instruction has come")
    assert [(r.goal, r.state) for r in reports] == [
        (1, GoalState.EXECUTING),
        (1, GoalState.ABORTED),
        (2, GoalState.EXECUTING),
    ]
    assert episode.told == ["begin", "rest: goal 1 aborted: another goal takes its place", "begin"]


def test_a_goal_takes_the_instruction_in_force_and_needs_one(
    keeper: GoalKeeper, episode: Episode
) -> None:
    with pytest.raises(UserError, match="publish one on the topic"):
        keeper.request("")
    episode.instruction = BOX
    assert keeper.request("").instruction == BOX


@pytest.mark.parametrize("timeout_s", [math.nan, -1.0])
def test_a_time_limit_that_cannot_be_is_refused(
    keeper: GoalKeeper, episode: Episode, timeout_s: float
) -> None:
    with pytest.raises(UserError, match="timeout_s"):
        keeper.request(CAN, timeout_s)
    assert not episode.told


def test_an_obstacle_refuses_a_goal_or_aborts_it_before_the_first_tick(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport]
) -> None:
    episode.obstacle = "the node is inactive; activate it first"
    with pytest.raises(UserError, match="activate it first"):
        keeper.request(CAN)
    episode.obstacle = ""
    keeper.request(CAN)
    episode.obstacle = "emergency stop"
    episode.ready("")
    assert (reports[-1].state, reports[-1].reason) == (GoalState.ABORTED, "emergency stop")


def test_a_goal_whose_instruction_cannot_be_used_is_aborted(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport]
) -> None:
    keeper.request("sing")
    episode.ready("no embedding of the instruction 'sing'")
    assert (reports[-1].state, reports[-1].reason) == (
        GoalState.ABORTED,
        "no embedding of the instruction 'sing'",
    )


def test_a_goal_can_be_canceled_once_also_while_it_is_prepared(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport]
) -> None:
    with pytest.raises(UserError, match="deactivate the node"):
        keeper.cancel()
    keeper.request(CAN)
    assert keeper.cancel().state is GoalState.CANCELED
    episode.ready("")  # it lets the episode tick, which must not go on
    assert episode.told == ["begin", "rest: goal 1 canceled", "rest: goal 1 canceled"]
    with pytest.raises(UserError):
        keeper.cancel()
    assert len(reports) == 2


def test_a_goal_is_aborted_when_its_time_is_up(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport], now_s: list[float]
) -> None:
    keeper.parameters = PolicyParameters(goal_timeout_s=60.0)
    keeper.request(CAN, timeout_s=30.0)
    episode.ready("")
    keeper.ticked(done=False)
    now_s[0] += 29.9
    keeper.watch("", "")
    assert not reports[-1].over
    now_s[0] += 0.1
    keeper.watch("", "")
    assert (reports[-1].state, reports[-1].reason) == (GoalState.ABORTED, "not done within 30 s")
    keeper.request(CAN)
    now_s[0] += 60.0
    keeper.ticked(done=False)
    assert reports[-1].reason == "not done within 60 s"


def test_a_goal_without_prospect_is_aborted(
    keeper: GoalKeeper, episode: Episode, reports: list[GoalReport], now_s: list[float]
) -> None:
    """The wait for the first tick begins when the memory is ready: a language model may take long."""
    keeper.request(CAN)
    now_s[0] += 10.0
    keeper.watch("", "preparing")
    episode.ready("")
    now_s[0] += 1.9
    keeper.watch("", "head: no message")
    assert not reports[-1].over
    now_s[0] += 0.2
    keeper.watch("", "head: no message")
    assert reports[-1].reason == "there was no first tick: head: no message"
    keeper.request(CAN)
    episode.ready("")
    keeper.ticked(done=False)
    now_s[0] += 10.0
    keeper.watch("", "")
    assert not reports[-1].over
    keeper.watch("observations stayed away", "")
    assert reports[-1].reason == "observations stayed away"


def test_the_robot_is_stopped_before_anybody_hears_of_the_end(
    keeper: GoalKeeper, episode: Episode
) -> None:
    keeper.listeners.append(lambda report: episode.told.append(report.state.value))
    keeper.request(CAN)
    keeper.cancel()
    keeper.abort("it has ended already")
    assert episode.told == ["executing", "begin", "rest: goal 1 canceled", "canceled"]


@pytest.mark.parametrize("text", ["x" * 5_000_000, "pick \x1b[2J"], ids=len)
def test_a_goal_is_refused_whose_instruction_is_no_line_of_text(
    keeper: GoalKeeper, episode: Episode, text: str
) -> None:
    with pytest.raises(UserError) as refused:
        keeper.request(text)
    assert len(str(refused.value)) < 400
    assert str(refused.value).isprintable()
    assert not episode.told
    assert keeper.request(f" {CAN}\n").instruction == CAN
