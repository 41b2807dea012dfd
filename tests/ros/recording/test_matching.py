"""Messages meet at their ticks: those of a whole recording, and those that come one by one."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.policy import UserError
from ttm_policy.recording.matching import Tick, TickMatcher, Topics

MS = 1_000_000


def matcher(start_ms: int | None = None) -> TickMatcher[int]:
    """At 10 Hz; messages are numbers."""
    start_ns = None if start_ms is None else start_ms * MS
    topics = Topics(frozenset({"eye", "hand"}), frozenset({"arm", "base"}), frozenset({"base"}))
    return TickMatcher(topics, 10.0, start_ns)


def add(into: TickMatcher[int], topic: str, *times_ms: int) -> list[bool]:
    return [into.add(topic, ms * MS, ms) for ms in times_ms]


def rows(ticks: list[Tick[int]]) -> list[tuple[dict[str, int], dict[str, int]]]:
    return [(dict(tick.observation), dict(tick.command)) for tick in ticks]


def test_a_command_made_at_a_tick_belongs_to_it() -> None:
    """The ticks are at 0, 100 and 200 ms; 99 ms is still of the first."""
    taken = matcher()
    for topic, times in (("eye", [0]), ("hand", [0]), ("arm", [0, 99, 200]), ("base", [100])):
        add(taken, topic, *times)
    assert [command for _, command in rows(list(taken.finish()))] == [
        {"arm": 99}, {"arm": 99, "base": 100}, {"arm": 200},
    ]  # fmt: skip


def test_the_first_tick_is_when_every_topic_was_seen() -> None:
    taken = matcher()
    add(taken, "eye", 0, 33, 66, 99, 132)
    assert taken.unseen == ["hand"]
    assert taken.start_ns is None
    add(taken, "hand", 70, 120)
    add(taken, "arm", 300)
    first, second, *_ = taken.finish()
    assert (first.observation, first.captured_ns) == ({"eye": 66, "hand": 70}, 70 * MS)
    assert second.observation == {"eye": 132, "hand": 120}


def test_of_equal_stamps_the_last_received_wins() -> None:
    taken = matcher()
    for number in (1, 2):
        for topic in ("eye", "hand", "arm"):
            taken.add(topic, 0, number)
    assert rows(list(taken.finish())) == [({"eye": 2, "hand": 2}, {"arm": 2})]


def test_one_by_one_gives_the_ticks_of_the_whole() -> None:
    """Messages are received up to 60 ms late, and ticks are taken 100 ms late."""
    random = np.random.default_rng(0)
    made = {"eye": range(0, 3000, 33), "hand": range(5, 3000, 8), "arm": range(40, 2500, 170)}
    made["base"] = [*range(300, 900, 40), *range(1500, 2200, 90)]
    received = sorted(
        (ms + int(random.integers(0, 60)), topic, ms)
        for topic, times in made.items()
        for ms in times
    )
    whole, live = matcher(), matcher()
    ticks: list[Tick[int]] = []
    for _, topic, ms in received:
        add(whole, topic, ms)
        assert add(live, topic, ms) == [True]
        ticks += live.ticks((ms - 100) * MS)
    ticks += live.finish()
    expected = list(whole.finish())
    assert len(expected) == whole.num_ticks == live.num_ticks == 25
    # Live, it is not known at first that no further command comes.
    assert rows(ticks[: live.num_ticks]) == rows(expected)


def test_what_comes_for_a_tick_that_was_given_is_told() -> None:
    taken = matcher()
    for topic in ("eye", "hand", "arm"):
        add(taken, topic, 0, 250)
    assert len(list(taken.ticks(200 * MS))) == 2
    assert add(taken, "eye", 100, 101) == [False, True]
    assert add(taken, "base", 199, 200) == [False, True]


def test_observations_before_the_start_are_not_used_but_commands_are_in_force() -> None:
    taken = matcher(start_ms=500)
    add(taken, "eye", 100, 510)
    add(taken, "hand", 100, 520)
    add(taken, "arm", 90)
    add(taken, "base", 90, 540)
    assert rows(list(taken.finish())) == [({"eye": 510, "hand": 520}, {"arm": 90, "base": 540})]


def test_stamps_of_different_clocks_are_told() -> None:
    taken = matcher()
    add(taken, "eye", 0)
    add(taken, "hand", 0)
    add(taken, "arm", 10_000_000)
    with pytest.raises(UserError, match="are of different clocks"):
        list(taken.finish())
    with pytest.raises(UserError, match="are of different clocks"):
        list(taken.ticks(10_000_000 * MS))
