"""What happens between start and stop of an episode.

=========  =================================================================================
ready      waits for `start`; keeps the last `preroll_s` of messages
waiting    waits for `scene_begun`, if a simulated scene begins again for the episode
countdown  waits until the first tick
recording  matches messages to ticks, and hands these to the writing thread
saving     waits for messages that are still under way, and then for the writing thread
=========  =================================================================================

It takes the time as an argument, so that tests can set it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from ttm.datasets.tools.edit import delete_episodes
from ttm.policy.errors import UserError
from ttm_policy.parameters import RecorderParameters
from ttm_policy.recording.episodes import EpisodeSink
from ttm_policy.recording.matching import Tick, TickMatcher, Topics, Track

OLD_TICKS = 2
"""A message that was made longer than this many ticks before its tick is old."""
LONGEST_SILENCE_S = 10.0
"""While no observation comes, the commands of so much time are kept for the next episode."""
MOST_KEPT = 10_000
"""So many messages of a topic are kept for the next episode, however close their stamps are."""
SET_BACK_NS = 500_000_000
"""A message that was made so long before the newest one of its topic is of a clock that was set back,"""
CERTAIN_S = 0.3
"""unless newer ones follow within this time: a new subscription may receive older messages once more."""


class Cadence:
    """How evenly the messages of an episode came: the ticks without a new message of a topic, and more.

    Messages that were `lost` were published and never arrived, by gaps in the publishers' numbers; those that
    were `late` arrived after their tick had been written.
    """

    def __init__(self, observed: Collection[str], rate_hz: float) -> None:
        self.observed, self.rate_hz = observed, rate_hz
        self.lost: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self._ticks: list[tuple[int, list[str], list[str]]] = []
        self._stamps_ns: dict[str, int] = {}

    @property
    def ticks(self) -> int:
        """The number of ticks."""
        return len(self._ticks)

    def count(self, tick: Tick[Any], begin_ns: int) -> None:
        """Count one tick. begin_ns: when it begins."""
        repeated, old = [], []
        for topic, stamp_ns in tick.stamps_ns.items():
            if self._stamps_ns.get(topic) == stamp_ns:
                repeated.append(topic)
            elif begin_ns - stamp_ns > OLD_TICKS * 1e9 / self.rate_hz:
                old.append(topic)
            self._stamps_ns[topic] = stamp_ns
        self._ticks.append((tick.captured_ns, repeated, old))

    def end_at(self, ticks: int) -> None:
        """Forget the ticks after the first `ticks`."""
        del self._ticks[ticks:]

    @property
    def repeated(self) -> Counter[str]:
        """Ticks whose message is that of the tick before."""
        return Counter(topic for _, repeated, _ in self._ticks for topic in repeated)

    @property
    def old(self) -> Counter[str]:
        """Ticks whose message is new, but was made more than `OLD_TICKS` before."""
        return Counter(topic for _, _, old in self._ticks for topic in old)

    @property
    def _worst(self) -> tuple[str, int, float]:
        """The topic with the most ticks without a new message, how many, and the portion of the others."""
        bad = self.repeated + self.old
        topic = max(sorted(self.observed), key=lambda each: bad[each])
        return topic, bad[topic], 1 - bad[topic] / self.ticks if self.ticks else 1.0

    def describe(self) -> str:
        """Return the counts in a line."""
        span_ns = self._ticks[-1][0] - self._ticks[0][0] if self._ticks else 0
        measured_hz = 0.0 if span_ns <= 0 else (self.ticks - 1) * 1e9 / span_ns
        parts = [f"{self.ticks} ticks, {measured_hz:.2f} Hz of {self.rate_hz:g}"]
        parts.append(f"{self._worst[2]:.0%} with new messages of all inputs")
        for what in ("repeated", "old", "lost", "late"):
            if counts := getattr(self, what):
                listed = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
                parts.append(f"{what}: {listed}")
        return "; ".join(parts)

    def refusal(self, least_fresh: float) -> str:
        """Return why an episode with fewer fresh ticks than `least_fresh` is refused, or an empty text."""
        worst, bad, fresh = self._worst
        if fresh >= least_fresh:
            return ""
        few = f"'{worst}' had no new message in {bad} of {self.ticks} ticks"
        return f"{few}; {least_fresh:.0%} need one (min_fresh)"


class State(Enum):
    """What the recorder does now. The values are the texts of its status."""

    READY = "ready"
    WAITING = "waiting for the scene"
    COUNTDOWN = "countdown"
    RECORDING = "recording"
    SAVING = "saving"


IN_HAND = (State.WAITING, State.COUNTDOWN, State.RECORDING)
"""The states in which there is an episode that can be discarded."""


class _Ending(NamedTuple):
    """A stopped episode, which takes messages from before `stop_ns` until `until_s`."""

    success: bool | None
    until_s: float
    stop_ns: int


class RecordingSession:
    """Starts, stops, discards and takes back episodes.

    Times in seconds are those of a steady clock; stamps are in ns, on the clock of the sensors.
    """

    def __init__(self, topics: Topics, parameters: RecorderParameters, sink: EpisodeSink) -> None:
        """parameters: with the control rate that is used."""
        self.topics, self._parameters = topics, parameters
        self.state = State.READY
        self.instruction = self.report = ""
        self.problem = ""
        """Why the last episode was not kept; empty if it was."""
        self.clock_change = ""
        """By how much the clock of the stamps was set, in words; whoever logs it empties this."""
        self.saved: list[Path] = []
        """The episodes of this session without those that were taken back."""
        self.newest_ns: dict[str, int] = {}
        """The newest stamp of each observed topic."""
        self._sink = sink
        self._begins_s = 0.0
        self._ending: _Ending | None = None
        self._matcher: TickMatcher[Any] | None = None
        self._cadence = Cadence(topics.observed, parameters.rate_hz)
        self._number: int | None = None
        """Which one the episode in hand is, as the sink counts."""
        self._newest_ns = 0
        self._recent: dict[str, Track[Any]] = defaultdict(Track)
        self._last: dict[str, Any] = {}
        """The message of each topic that was received last; commands among them are in force."""
        self._set_back_ns: dict[str, int] = {}
        """Topic -> by how much its clock seems to be set back."""
        self._since: list[tuple[str, int, Any]] = []
        """What was received since it seems so,"""
        self._certain_s: float | None = None
        """and when that is certain."""

    @property
    def num_ticks(self) -> int:
        """The number of ticks of the episode in hand, as far as is known."""
        return 0 if self._matcher is None else self._matcher.num_ticks

    @property
    def lost(self) -> dict[str, int]:
        """Messages of the newest episode that were published and never arrived, by topic."""
        return dict(self._cadence.lost)

    def remaining_s(self, now_s: float) -> float:
        """Return how long the countdown goes on."""
        return max(self._begins_s - now_s, 0.0) if self.state is State.COUNTDOWN else 0.0

    def missing(self) -> list[str]:
        """Return the observed topics that have not been received yet."""
        return sorted(self.topics.observed - self.newest_ns.keys())

    def silent(self) -> list[str]:
        """Return the observed topics that are more than a second behind the newest one."""
        newest = max(self.newest_ns.values(), default=0)
        return sorted(t for t, stamp in self.newest_ns.items() if newest - stamp > 1e9)

    def message(self, topic: str, stamp_ns: int, message: Any) -> None:
        """Take a message of any topic."""
        self._last[topic] = message
        self._look_at_clock(topic, stamp_ns, message)
        if topic in self.topics.observed:
            self.newest_ns[topic] = max(stamp_ns, self.newest_ns.get(topic, 0))
        self._newest_ns = max(stamp_ns, self._newest_ns)
        self._keep(topic, stamp_ns, message)
        if self._matcher is None or (self._ending and stamp_ns > self._ending.stop_ns):
            return
        if not self._matcher.add(topic, stamp_ns, message):
            self._cadence.late[topic] += 1
        late_ns = round(self._parameters.max_delay_s * 1e9)
        until_ns = max(self.newest_ns.values(), default=0) - late_ns
        self._give(lambda matcher: matcher.ticks(until_ns))

    def clock_changed(self, by_s: float) -> None:
        """Go on after the clock of the stamps was set ahead (+) or back (-). Commands stay in force."""
        since, self._since = self._since, []
        self._set_back_ns, self._certain_s = {}, None
        way = "back" if by_s < 0 else "ahead"
        self.clock_change = f"the clock was set {way} by {abs(by_s):.1f} s"
        if self._matcher is not None:
            self._drop(f"{self.clock_change} during the episode; record it again")
        self._recent.clear()
        self.newest_ns, self._newest_ns = {}, 0
        for topic in self.topics.commands & self._last.keys():
            self._recent[topic].add(0, self._last[topic])
        for topic, stamp_ns, message in since:
            self.message(topic, stamp_ns, message)

    def _look_at_clock(self, topic: str, stamp_ns: int, message: Any) -> None:
        """Note whether the clock of a topic seems to be set back; `update` says when that is certain."""
        track = self._recent[topic]
        behind_ns = track.newest_ns - stamp_ns if track.total else 0
        if behind_ns > SET_BACK_NS:
            self._set_back_ns.setdefault(topic, behind_ns)
        elif behind_ns <= 0:
            self._set_back_ns.pop(topic, None)
        if self._set_back_ns:
            self._since.append((topic, stamp_ns, message))
        else:
            self._since, self._certain_s = [], None

    def _watch_clock(self, now_s: float) -> None:
        """Heed a clock that was set back as soon as that is certain, or before the episode is complete."""
        if not self._set_back_ns:
            return
        if self._certain_s is None:
            self._certain_s = now_s + CERTAIN_S
        if now_s >= self._certain_s or self.ends(now_s):
            self.clock_changed(-max(self._set_back_ns.values()) * 1e-9)

    def lose(self, topic: str, count: int) -> None:
        """Note that messages of a topic were published but never arrived."""
        if self._matcher is not None:
            self._cadence.lost[topic] += count

    def start(self, instruction: str, now_s: float, *, waits: bool = False) -> str:
        """Begin the countdown of an episode; return what happens, in words. Raises `UserError`.

        waits: whether it begins with `scene_begun`.
        """
        if self.state is not State.READY:
            raise UserError(f"it is {self.state.value}; stop or discard that episode first")
        if not instruction.strip():
            raise UserError("no instruction yet; type one on the page, or publish `instruction`")
        if missing := self.missing():
            raise UserError(f"nothing received yet from: {', '.join(missing)}; is it published?")
        self.instruction, self.problem, self.report = instruction.strip(), "", ""
        self.state = State.WAITING
        if not waits:
            self.scene_begun(now_s)
        if self.problem:
            raise UserError(self.problem)
        return f"{self.state.value}: {self.instruction}"

    def scene_begun(self, now_s: float) -> None:
        """Begin the countdown of an episode that waits for it."""
        if self.state is State.WAITING:
            self.state, self._begins_s = State.COUNTDOWN, now_s + self._parameters.countdown_s
            self.update(now_s)

    def scene_missing(self, problem: str) -> None:
        """Give up an episode that waits for its scene. problem: why it does not begin."""
        if self.state is State.WAITING:
            self._drop(problem)

    def stop(self, success: bool | None, now_s: float) -> str:
        """End the episode, and keep it if it is whole and even. success: None if nobody judged it."""
        if self.state is not State.RECORDING:
            raise UserError(f"it is {self.state.value}, not recording; there is nothing to stop")
        self.state = State.SAVING
        self._ending = _Ending(success, now_s + self._parameters.max_delay_s, self._newest_ns)
        return f"saving: {self.instruction}"

    def discard(self) -> str:
        """Drop the episode in hand; return what happens, in words."""
        if self.state not in IN_HAND:
            raise UserError(f"it is {self.state.value}; there is no episode to discard")
        self._drop("")
        return "discarded"

    def undo(self) -> str:
        """Delete the last episode of this session; `ttm data undo` brings it back."""
        if self.state is not State.READY:
            raise UserError(f"it is {self.state.value}; stop or discard that episode first")
        if not self.saved:
            raise UserError("no episode was recorded since the start; see `ttm data delete`")
        path = self.saved[-1]
        if path.exists():
            delete_episodes([path])
        self.saved.pop()
        return f'deleted {path.name}; to bring it back: ttm data undo "{path.parent}"'

    def ends(self, now_s: float) -> bool:
        """Return whether `update` will end a stopped episode: nothing is waited for any more."""
        return self._ending is not None and now_s >= self._ending.until_s

    def update(self, now_s: float) -> None:
        """Let time pass. This is called several times a second."""
        self._watch_clock(now_s)
        if self.state is State.COUNTDOWN and now_s >= self._begins_s:
            self._record()
        if self._ending is not None and self.ends(now_s):
            self._end(self._ending.success)

    def written(self, path: Path) -> None:
        """Note that the episode is complete."""
        self.saved.append(path)
        self.state = State.READY

    def failed(self, number: int, reason: str) -> None:
        """Note that an episode could not be written; if it is the one in hand, it ends."""
        if self.state in (State.RECORDING, State.SAVING) and number == self._number:
            self._drop(reason)

    def _record(self) -> None:
        newest_ns = max(self.newest_ns.values(), default=None)
        preroll_ns = round(self._parameters.preroll_s * 1e9)
        try:
            self._number = self._sink.begin(self._last)
        except UserError as error:
            self.state, self.problem = State.READY, str(error)
            return
        start_ns = None if newest_ns is None else newest_ns + 1 - preroll_ns
        self._matcher = TickMatcher(self.topics, self._parameters.rate_hz, start_ns)
        self._cadence = Cadence(self.topics.observed, self._parameters.rate_hz)
        for topic, track in self._recent.items():
            for stamp_ns, message in track.messages:
                self._matcher.add(topic, stamp_ns, message)
        self.state = State.RECORDING

    def _keep(self, topic: str, stamp_ns: int, message: Any) -> None:
        """Keep what the next episode may need: its pre-roll, and the commands in force before that."""
        track = self._recent[topic]
        track.add(stamp_ns, message)
        del track.messages[:-MOST_KEPT]
        silent_ns = track.messages[-1][0] - round(LONGEST_SILENCE_S * 1e9)
        seen_ns = max(self.newest_ns.values(), default=silent_ns)
        track.newest(max(seen_ns, silent_ns) - round(self._parameters.preroll_s * 1e9))

    def _give(self, ticks: Callable[[TickMatcher[Any]], Any]) -> None:
        """Hand over ticks of the matcher. What is wrong with them ends the episode."""
        assert self._matcher is not None
        try:
            for tick in ticks(self._matcher):
                self._cadence.count(tick, self._matcher.begin_ns(self._cadence.ticks))
                self._sink.put(tick)
        except UserError as error:
            self._drop(str(error))

    def _end(self, success: bool | None) -> None:
        matcher, self._ending = self._matcher, None
        assert matcher is not None
        self._give(TickMatcher.finish)
        if self.state is not State.SAVING:
            return
        count = matcher.num_ticks
        self._cadence.end_at(count)
        self.report = self._cadence.describe()
        if not count:
            what = "whole observation after another" if self.topics.measured else "command"
            self._drop(f"no {what} came while it was recorded; nothing can be learned from it")
        elif refusal := self._cadence.refusal(self._parameters.min_fresh):
            self._drop(f"the episode is refused: {refusal}")
        else:
            self._matcher = None
            self._sink.finish(count, self.instruction, success)

    def _drop(self, problem: str) -> None:
        if self.state not in (State.WAITING, State.COUNTDOWN):
            self._sink.discard()
        self._matcher = self._ending = None
        self.state, self.problem = State.READY, problem
