"""Start, stop, discard and undo: what is recorded, what is refused, and how it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ttm.datasets.tools.edit import undo_edit
from ttm.policy import UserError
from ttm_policy.parameters import RecorderParameters
from ttm_policy.recording.matching import Tick, Topics
from ttm_policy.recording.session import MOST_KEPT, RecordingSession, State

MS = 1_000_000
TOPICS = Topics(frozenset({"eye", "hand"}), frozenset({"arm", "base"}), frozenset({"base"}))


class ListSink:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.ticks: list[Tick[Any]] = []
        self.finished: list[tuple[list[tuple[Any, Any]], str, bool | None]] = []
        self.full = False
        self.begun = 0

    def begin(self, newest: Mapping[str, Any]) -> int:
        self.newest = dict(newest)
        if self.full:
            raise UserError("only 3 MiB are free")
        self.ticks = []
        self.begun += 1
        return self.begun

    def put(self, tick: Tick[Any]) -> None:
        self.ticks.append(tick)

    def finish(self, num_ticks: int, instruction: str, success: bool | None) -> None:
        rows = [(dict(t.observation), dict(t.command)) for t in self.ticks[:num_ticks]]
        self.finished.append((rows, instruction, success))

    def discard(self) -> None:
        self.ticks = []


class World:
    """A session at 10 Hz with sensors that tick 2 ms after each 100 ms; time is in ms."""

    def __init__(self, topics: Topics = TOPICS, **timing: float) -> None:
        self.sink = ListSink()
        parameters = RecorderParameters(rate_hz=10.0, **{"countdown_s": 0.0, **timing})
        self.session = RecordingSession(topics, parameters, self.sink)
        self.now_ms = 0

    def see(self, ms: int, *topics: str) -> None:
        for topic in topics or ("eye", "hand"):
            self.session.message(topic, ms * MS, ms)

    def start(self) -> str:
        return self.session.start("wave", self.now_ms / 1e3)

    def stop(self, success: bool | None = True) -> str:
        return self.session.stop(success, self.now_ms / 1e3)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.session.update(self.now_ms / 1e3)


def record(world: World, first_ms: int, ticks: int) -> None:
    """Record an episode with a command at each tick."""
    for ms in range(first_ms, first_ms + 100 * ticks, 100):
        world.see(ms)
        world.see(ms + 50, "arm", "base")
    world.stop()
    world.wait(300)


def test_an_episode_has_the_ticks_between_start_and_stop() -> None:
    world = World()
    world.see(0)
    world.start()
    assert world.session.state is State.RECORDING
    record(world, 100, 5)
    (rows, instruction, success) = world.sink.finished[0]
    assert (instruction, success) == ("wave", True)
    assert rows == [
        ({"eye": ms, "hand": ms}, {"arm": ms + 50, "base": ms + 50}) for ms in range(100, 600, 100)
    ]
    assert world.session.state is State.SAVING
    world.session.written(Path("episode_00000.hdf5"))
    assert world.session.state is State.READY
    assert "5 ticks, 10.00 Hz of 10; 100% with new messages" in world.session.report


def test_the_sink_gets_the_newest_messages_by_which_cameras_have_their_sizes() -> None:
    world = World(countdown_s=1.0)
    world.see(0)
    world.start()
    world.session.clock_changed(1.0)
    world.see(70, "eye")
    world.see(60, "eye")  # received last
    world.wait(1000)
    assert world.sink.newest == {"eye": 60, "hand": 0}


def test_ticks_are_given_while_the_episode_goes_on() -> None:
    world = World(max_delay_s=0.1)
    world.see(0)
    world.start()
    for ms in range(100, 1100, 100):
        world.see(ms)
    assert len(world.sink.ticks) == 8


def test_what_is_made_after_the_stop_is_not_recorded() -> None:
    world = World()
    world.see(0)
    world.start()
    world.see(100)
    world.see(150, "arm")
    world.stop(None)
    world.see(149, "base")  # made before, and received after it
    world.see(200)
    world.see(250, "arm", "base")
    world.wait(300)
    assert world.sink.finished[0][0] == [({"eye": 100, "hand": 100}, {"arm": 150, "base": 149})]


def test_measured_actions_need_no_command_but_a_tick_after_the_last_one() -> None:
    world = World(replace(TOPICS, measured=True))
    world.see(0)
    world.start()
    for ms in (100, 200, 300):
        world.see(ms)
    world.see(390, "eye")  # not whole
    assert world.session.num_ticks == 2
    world.stop()
    world.wait(300)
    assert [rows["eye"] for rows, _ in world.sink.finished[0][0]] == [100, 200]
    assert len(world.sink.ticks) == 3, "the third one measures what the second one did"
    world.session.written(Path("episode_00000.hdf5"))
    world.start()
    world.see(500)
    world.stop()
    world.wait(300)
    assert world.session.problem.startswith("no whole observation after another came")


def test_a_countdown_ends_in_recording() -> None:
    world = World(countdown_s=2.0)
    world.see(0)
    assert world.start() == "countdown: wave"
    world.wait(1500)
    assert world.session.remaining_s(world.now_ms / 1e3) == pytest.approx(0.5)
    assert world.session.state is State.COUNTDOWN
    world.wait(500)
    assert world.session.state is State.RECORDING


def test_the_preroll_is_recorded_with_the_commands_in_force() -> None:
    world = World(preroll_s=0.25)
    world.see(-900, "arm")
    for ms in range(-800, 100, 100):
        world.see(ms)
        world.see(ms + 50, "base")
    world.see(40, "arm")
    world.start()
    record(world, 100, 1)
    rows = world.sink.finished[0][0]
    assert [observation["eye"] for observation, _ in rows] == [-200, -100, 0, 100]
    assert [command["arm"] for _, command in rows] == [-900, -900, 40, 150]
    assert rows[0][1]["base"] == -150


def test_a_command_of_the_last_episode_is_in_force_in_the_next() -> None:
    """A gripper is told once to close."""
    world = World()
    world.see(0)
    world.start()
    record(world, 100, 2)
    world.session.written(Path("episode_00000.hdf5"))
    world.see(400)
    world.start()
    world.see(500)
    world.see(510, "base")
    world.stop()
    world.wait(300)
    assert world.sink.finished[1][0] == [({"eye": 500, "hand": 500}, {"arm": 250, "base": 510})]


def test_an_episode_with_a_frozen_camera_is_refused() -> None:
    world = World()
    world.see(0)
    world.start()
    for ms in range(100, 1100, 100):
        world.see(ms, "hand")
        if ms < 500:
            world.see(ms, "eye")
        world.see(ms + 50, "arm")
    world.stop()
    world.wait(300)
    assert not world.sink.finished
    assert world.session.state is State.READY
    assert "'eye' had no new message in 6 of 10 ticks, and 90% of" in world.session.problem
    assert "repeated: eye 6" in world.session.report
    world.see(1400)
    assert world.session.silent() == []
    world.start()
    record(world, 1500, 2)
    assert len(world.sink.finished) == 1, "the next one is recorded"


def test_a_frozen_camera_is_kept_where_that_is_allowed() -> None:
    world = World(min_fresh=0.0)
    world.see(0)
    world.start()
    world.see(100)
    for ms in range(100, 1000, 100):
        world.see(ms, "hand", "arm")
    world.stop()
    world.wait(300)
    assert len(world.sink.finished[0][0]) == 9
    assert world.session.silent() == []


def test_an_episode_without_a_command_is_not_kept() -> None:
    world = World()
    world.see(0)
    world.start()
    world.see(100)
    world.stop()
    world.wait(300)
    assert not world.sink.finished
    assert "no command came while it was recorded" in world.session.problem


def test_late_and_lost_messages_are_told() -> None:
    world = World(max_delay_s=0.1)
    world.see(0)
    world.start()
    for ms in range(100, 600, 100):
        world.see(ms)
        world.see(ms + 50, "arm")
    world.see(220, "base")
    world.session.lose("eye", 2)
    world.stop()
    world.wait(300)
    assert "lost: eye 2; late: base 1" in world.session.report


def test_discard_and_undo(tmp_path: Path) -> None:
    world = World(countdown_s=1.0)
    world.see(0)
    for wait_ms in (0, 1000):
        world.start()
        world.wait(wait_ms)
        assert world.session.discard() == "discarded"
        assert world.session.state is State.READY
    with pytest.raises(UserError, match="there is no episode to discard"):
        world.session.discard()
    with pytest.raises(UserError, match="no episode was recorded since the start"):
        world.session.undo()
    (tmp_path / "episode_00000.hdf5").write_bytes(b"episode")
    world.session.written(tmp_path / "episode_00000.hdf5")
    assert "ttm data undo" in world.session.undo()
    assert not list(tmp_path.glob("*.hdf5"))
    undo_edit(tmp_path)
    assert (tmp_path / "episode_00000.hdf5").read_bytes() == b"episode"


def test_wrong_times_are_told() -> None:
    world = World()
    with pytest.raises(UserError, match="nothing received yet from: eye, hand"):
        world.start()
    world.see(0)
    with pytest.raises(UserError, match="no instruction"):
        world.session.start(" ", 0.0)
    with pytest.raises(UserError, match="it is ready, not recording"):
        world.stop()
    world.start()
    for call in (world.start, world.session.undo):
        with pytest.raises(UserError, match="it is recording; stop or discard"):
            call()
    world.stop()
    with pytest.raises(UserError, match="it is saving"):
        world.session.discard()


def test_a_failed_write_and_a_full_disk_leave_it_ready() -> None:
    world = World()
    world.see(0)
    world.start()
    world.session.failed(1, "cannot write: No space left on device")
    assert (world.session.state, world.session.problem) == (
        State.READY, "cannot write: No space left on device",
    )  # fmt: skip
    world.sink.full = True
    with pytest.raises(UserError, match="only 3 MiB are free"):
        world.start()
    assert (world.session.state, world.session.problem) == (State.READY, "only 3 MiB are free")
    world.sink.full = False
    world.start()
    assert (world.session.state, world.session.problem) == (State.RECORDING, "")


def test_a_late_failure_of_a_discarded_episode_leaves_the_next_one_alone() -> None:
    world = World()
    world.see(0)
    world.start()
    world.session.discard()
    world.start()
    world.session.failed(1, "No space left on device")
    assert (world.session.state, world.session.problem) == (State.RECORDING, "")
    record(world, 100, 2)
    assert len(world.sink.finished[0][0]) == 2


def kept(session: RecordingSession) -> int:
    return sum(len(track.messages) for track in session._recent.values())


def test_what_is_kept_for_the_next_episode_is_bounded() -> None:
    """Also without any observation, while all are silent, and after a command with a wrong stamp."""
    blind, silent, ahead = World(), World(preroll_s=1.0), World(preroll_s=1.0)
    silent.see(0)
    ahead.see(86_400_000, "arm")  # its clock is a day ahead
    for ms in range(0, 60_000, 10):
        blind.see(ms, "arm", "base")
        silent.see(ms, "arm", "base")
        ahead.see(ms, "arm", "eye", "hand")
    assert kept(blind.session) <= 2 * (1000 + 2)
    assert kept(silent.session) <= 2 * (1100 + 2) + 2
    assert kept(ahead.session) <= 3 * (100 + 2)


def test_a_stamp_that_stands_still_is_kept_once() -> None:
    world = World(preroll_s=1.0)
    for _ in range(1000):
        world.see(5)
    assert kept(world.session) == 2


DAY_MS = 86_400_000


@pytest.mark.parametrize("back", [("eye", "hand", "arm", "base"), ("arm", "base")])
@pytest.mark.parametrize("wait_ms", [400, 100])
def test_an_episode_whose_clock_is_set_back_is_not_kept(
    back: tuple[str, ...], wait_ms: int
) -> None:
    """Whether all clocks are set back or that of who commands, and however soon the stop follows."""
    world = World()
    world.see(DAY_MS)
    world.start()
    for ms in range(100, 600, 100):
        world.see(DAY_MS + ms)
        world.see(DAY_MS + ms + 50, "arm", "base")
    for ms in range(600, 1000, 100):
        for topic in ("eye", "hand", "arm", "base"):
            world.see(ms if topic in back else DAY_MS + ms, topic)
    world.wait(wait_ms)
    world.wait(wait_ms)
    if world.session.state is State.RECORDING:
        world.stop()
        world.wait(300)
    assert not world.sink.finished
    assert world.session.state is State.READY
    assert world.session.problem.startswith("the clock was set back by 86400.0 s")
    assert "record it again" in world.session.problem


@pytest.mark.parametrize("of_computer", [True, False])
@pytest.mark.parametrize("ms", [1000, 3 * DAY_MS])
def test_after_its_clock_was_set_the_next_episode_is_recorded(ms: int, of_computer: bool) -> None:
    """Also with what was in force before, and with what came while it was not clear yet."""
    world = World()
    world.see(DAY_MS)
    world.see(DAY_MS + 10, "arm")
    if of_computer:
        world.session.clock_changed((ms - DAY_MS) / 1e3)
        assert world.session.missing() == ["eye", "hand"]
    world.see(ms)
    world.wait(10)
    world.wait(400)
    assert world.session.missing() == []
    assert set(world.session.newest_ns.values()) == {ms * MS}
    world.start()
    for each in range(ms + 100, ms + 400, 100):
        world.see(each)
        world.see(each + 50, "base")
    world.stop()
    world.wait(300)
    (rows, _, success) = world.sink.finished[0]
    assert success
    assert rows == [
        ({"eye": each, "hand": each}, {"arm": DAY_MS + 10, "base": each + 50})
        for each in range(ms + 100, ms + 400, 100)
    ]


@pytest.mark.parametrize("by_s", [-86400.0, 0.2])
def test_an_episode_ends_when_the_clock_of_the_computer_is_set(by_s: float) -> None:
    world = World()
    world.see(0)
    world.start()
    world.see(100)
    world.see(150, "arm")
    world.session.clock_changed(by_s)
    assert (world.session.state, world.sink.ticks) == (State.READY, [])
    assert ("set back by 86400.0 s" if by_s < 0 else "set ahead by 0.2 s") in world.session.problem


def test_a_countdown_goes_on_when_the_clock_is_set() -> None:
    world = World(countdown_s=1.0)
    world.see(DAY_MS)
    world.start()
    world.session.clock_changed(-86400.0)
    assert (world.session.state, world.session.problem) == (State.COUNTDOWN, "")
    world.see(0)
    world.wait(1000)
    record(world, 100, 3)
    assert len(world.sink.finished[0][0]) == 3


def test_messages_that_are_received_again_are_no_clock_that_is_set_back() -> None:
    """A publisher that keeps its messages sends all of them to a new subscription."""
    world = World()
    world.see(0)
    world.start()
    for ms in range(100, 2100, 100):
        world.see(ms)
        world.see(ms + 50, "arm")
    world.see(100, "eye")
    world.wait(10)
    for ms in range(200, 2100, 100):
        world.see(ms, "eye")
    world.wait(1000)
    world.stop()
    world.wait(300)
    assert len(world.sink.finished[0][0]) == 20


def test_between_episodes_messages_do_not_pile_up_however_close_their_stamps_are() -> None:
    world = World()
    world.see(0)
    for stamp_ns in range(60 * 1000 * MS, 60 * 1000 * MS + 2 * MOST_KEPT):  # of a wrong clock
        world.session.message("arm", stamp_ns, "command")
    assert len(world.session._recent["arm"].messages) == MOST_KEPT
