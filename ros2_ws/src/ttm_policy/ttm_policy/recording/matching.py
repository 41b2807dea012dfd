"""Which messages belong to which tick, for recorded bags and for recording live.

The first tick is when every observation has been seen once; the others follow at the control rate,
until the last command. A tick's observation is the newest message of each topic that was made until
then. Its action are the newest commands that were made from then until the next tick. If there is
none, a robot that moves by velocity stands still, and others hold their last command.

Where actions are measured, ticks need no command: the last one is that before the newest observation.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import MAX_PIXELS, image_size
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    VectorSource,
    measured_goals,
    measured_places,
)
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, JointStates
from ttm_policy.messages import CommandCodec, image_to_frame, read_vector, rotation_between

Message = TypeVar("Message")

MOST_TICKS_A_MESSAGE = 100
"""More ticks for each message of the fullest topic mean that stamps are of different clocks."""


@dataclass(frozen=True)
class Tick(Generic[Message]):
    """The messages of one tick, by topic."""

    observation: Mapping[str, Message]
    """The newest message of each observed topic."""
    stamps_ns: Mapping[str, int]
    """When each of them was made."""
    command: Mapping[str, Message]
    """The newest command of each topic that had one."""

    @property
    def captured_ns(self) -> int:
        """When the newest message of the observation was made."""
        return max(self.stamps_ns.values())

    def earlier(self, by_ns: int) -> Tick[Message]:
        """Return the tick with observations that were made so much earlier."""
        stamps_ns = {topic: stamp_ns - by_ns for topic, stamp_ns in self.stamps_ns.items()}
        return replace(self, stamps_ns=stamps_ns)


class TickMatcher(Generic[Message]):
    """Takes messages in the order in which they were received, and gives the ticks that they make.

    Parameters
    ----------
    observed
        The topics of the observation.
    commands
        The topics of the commands.
    moving
        Those commands that move the robot by velocity.
    rate_hz
        The control rate.
    start_ns
        Observations that were made before are not used. Commands are, since they are still in force.
    measured
        Whether actions are measured from one tick to the next.
    """

    def __init__(
        self,
        observed: Collection[str],
        commands: Collection[str],
        moving: Collection[str],
        rate_hz: float,
        start_ns: int | None = None,
        *,
        measured: bool = False,
    ) -> None:
        self._observed = {topic: Track[Message]() for topic in observed}
        self._commands = {topic: Track[Message]() for topic in commands}
        self._moving = frozenset(moving)
        self._period_ns = 1e9 / rate_hz
        self._earliest_ns, self._measured = start_ns, measured
        self._first_ns: int | None = None
        self._given = 0
        self._last_command_ns: int | None = None

    def add(self, topic: str, stamp_ns: int, message: Message) -> bool:
        """Take a message. Return False if it comes too late, for a tick that was given already."""
        in_time = True
        if topic in self._commands:
            self._commands[topic].add(stamp_ns, message)
            self._last_command_ns = max(stamp_ns, self._last_command_ns or stamp_ns)
            in_time = not self._given or stamp_ns >= self.begin_ns(self._given)
        if topic in self._observed and stamp_ns >= (self._earliest_ns or stamp_ns):
            self._observed[topic].add(stamp_ns, message)
            in_time &= not self._given or stamp_ns > self.begin_ns(self._given - 1)
        return in_time

    @property
    def unseen(self) -> list[str]:
        """The observed topics that have no message yet."""
        return [topic for topic, track in self._observed.items() if not track.total]

    @property
    def start_ns(self) -> int | None:
        """When the first tick is, as far as is known; None while a topic has no message."""
        if self._first_ns is not None or self.unseen:
            return self._first_ns
        return max(track.first_ns for track in self._observed.values())

    @property
    def num_ticks(self) -> int:
        """The number of ticks until the last command that is known now, or that can be measured."""
        if self.start_ns is None or self._last_ns is None:
            return 0
        whole = int((self._last_ns - self.start_ns) // self._period_ns) + 1
        return max(whole - self._measured, 0)

    @property
    def _last_ns(self) -> int | None:
        if not self._measured:
            return self._last_command_ns
        return None if self.unseen else min(t.newest_ns for t in self._observed.values())

    def begin_at(self, first_ns: int) -> None:
        """Let the first tick begin then, if every topic was seen until then."""
        if self.start_ns is not None:
            self._first_ns = max(first_ns, self.start_ns)

    def ticks(self, until_ns: int) -> Iterator[Tick[Message]]:
        """Yield the ticks that end until then, also those after the last command.

        What is added later for one of them comes too late.
        """
        while self.start_ns is not None and self.begin_ns(self._given + 1) <= until_ns:
            yield self._next(until_ns)

    def finish(self) -> Iterator[Tick[Message]]:
        """Yield the ticks that are left, until the last command, or the one that measures the last tick."""
        while self.num_ticks and self._given < self.num_ticks + self._measured:
            assert self._last_ns is not None
            yield self._next(self._last_ns)

    def _next(self, until_ns: int) -> Tick[Message]:
        self._first_ns = self.start_ns
        self._refuse_two_clocks(until_ns)
        tick = self._tick()
        self._given += 1
        return tick

    def begin_ns(self, tick: int) -> int:
        """Return when a tick begins, in ns. Every topic must have a message."""
        assert self.start_ns is not None
        return self.start_ns + round(tick * self._period_ns)

    def _tick(self) -> Tick[Message]:
        begin_ns, end_ns = self.begin_ns(self._given), self.begin_ns(self._given + 1)
        seen = {topic: track.newest(begin_ns) for topic, track in self._observed.items()}
        done = {topic: track.newest(end_ns - 1) for topic, track in self._commands.items()}
        return Tick(
            {topic: found[1] for topic, found in seen.items() if found},
            {topic: found[0] for topic, found in seen.items() if found},
            {
                topic: found[1]
                for topic, found in done.items()
                if found and (topic not in self._moving or found[0] >= begin_ns)
            },
        )

    def _refuse_two_clocks(self, until_ns: int) -> None:
        """Raise `UserError` if ticks go on for far longer than messages do."""
        assert self._first_ns is not None
        most = max(track.total for track in (*self._observed.values(), *self._commands.values()))
        ahead_ns = until_ns - self._first_ns
        if ahead_ns / self._period_ns > MOST_TICKS_A_MESSAGE * most:
            raise UserError(
                f"the newest message was made {ahead_ns / 1e9:.0f} s after the first whole observation, "
                "with hardly a message in between; their stamps are of different clocks"
            )


class Track(Generic[Message]):
    """The messages of one topic in the order of their stamps; of equal ones the last received wins."""

    def __init__(self) -> None:
        self.total = 0
        self.first_ns = self.newest_ns = 0
        self.messages: list[tuple[int, Message]] = []
        """Those that were not forgotten, each after its stamp."""

    def add(self, stamp_ns: int, message: Message) -> None:
        """Take a message in place of one with the same stamp."""
        self.first_ns = min(stamp_ns, self.first_ns) if self.total else stamp_ns
        self.newest_ns = max(stamp_ns, self.newest_ns) if self.total else stamp_ns
        self.total += 1
        place = bisect_left(self.messages, stamp_ns, key=itemgetter(0))
        same = place < len(self.messages) and self.messages[place][0] == stamp_ns
        self.messages[place : place + same] = [(stamp_ns, message)]

    def newest(self, until_ns: int) -> tuple[int, Message] | None:
        """Return the newest message until then, and forget the older ones."""
        place = bisect_right(self.messages, until_ns, key=itemgetter(0)) - 1
        if place < 0:
            return None
        found = self.messages[place]
        del self.messages[:place]
        return found


# When messages were made: by the stamps in their headers, or else by when they were published.

HEADER = {False: ">iI", True: "<iI"}
"""How a stamp lies at the start of a message, by whether it is little-endian."""

HEADER_END = 12
"""The bytes of a message up to the end of its stamp."""

MOST_NOTES = 4096
"""At least half as many pairs of times are remembered, and messages that wait for one."""

SET_NS = 500_000_000
"""Times that are so far from their order tell of a clock that was set."""

Deliver = Callable[[str, int, Any], None]


def header_ns(data: Any) -> int:
    """Return the stamp of a serialised message that starts with a header, in ns.

    It is 0 for a message that is cut short, which reading it tells.
    """
    if len(data) < HEADER_END:
        return 0
    seconds, nanoseconds = struct.unpack_from(HEADER[bool(data[1] & 1)], data, 4)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


class Stamper:
    """Gives messages without a stamp the time at which they were published, on the stamps' clock.

    On a robot, that is the system clock, and nothing is to be done. In simulation, stamps are in
    simulated time, but the middleware says in system time when a message was published. A message was
    then made at the newest stamp that had been published before it. In lockstep this is exact: the
    answer to an observation is published after it, and before the next one, however late each arrives.

    Parameters
    ----------
    deliver
        Called with the topic, the stamp in ns and the message, for each message.
    simulated
        Whether the stamps are in simulated time.
    """

    def __init__(self, deliver: Deliver, *, simulated: bool) -> None:
        self._deliver, self._simulated = deliver, simulated
        self._published_ns: list[int] = []
        self._stamps_ns: list[int] = []
        self._waiting: list[tuple[int, str, Any]] = []

    def take(self, topic: str, stamp_ns: int, published_ns: int, message: Any) -> None:
        """Take a message. stamp_ns: that of its header, or 0 without one."""
        if stamp_ns or not self._simulated:
            self._deliver(topic, stamp_ns or published_ns, message)
        else:
            self._waiting.append((published_ns, topic, message))
            if len(self._waiting) > MOST_NOTES:  # no observation tells the time
                del self._waiting[: MOST_NOTES // 2]

    def note(self, stamp_ns: int, published_ns: int) -> None:
        """Learn that an observation with this stamp was published then."""
        if not self._simulated:
            return
        if self._contradicts(stamp_ns, published_ns):
            self.flush()
            self._published_ns, self._stamps_ns = [], []
        place = bisect_right(self._published_ns, published_ns)
        newest = max(stamp_ns, self._stamps_ns[place - 1]) if place else stamp_ns
        self._published_ns.insert(place, published_ns)
        self._stamps_ns.insert(place, newest)
        for later in range(place + 1, len(self._stamps_ns)):
            self._stamps_ns[later] = max(self._stamps_ns[later], newest)
        if len(self._published_ns) > MOST_NOTES:
            del self._published_ns[: MOST_NOTES // 2], self._stamps_ns[: MOST_NOTES // 2]
        self._release(published_ns)

    def _contradicts(self, stamp_ns: int, published_ns: int) -> bool:
        """Return whether an observation is older than those before by one clock, and newer by the other.

        Either the simulation has begun again, or the clock of the system was set back.
        """
        if not self._stamps_ns:
            return False
        newer_ns = (stamp_ns - self._stamps_ns[-1], published_ns - self._published_ns[-1])
        return min(newer_ns) < -SET_NS and max(newer_ns) > 0

    def flush(self) -> None:
        """Deliver all messages that wait for something to be published after them."""
        self._release(None)

    def _release(self, before_ns: int | None) -> None:
        """Deliver the messages that were published before a time, or all."""
        waiting, self._waiting = self._waiting, []
        for published_ns, topic, message in waiting:
            if before_ns is not None and published_ns >= before_ns:
                self._waiting.append((published_ns, topic, message))
                continue
            place = bisect_right(self._published_ns, published_ns)
            if place:  # before the first stamp, nothing is recorded
                self._deliver(topic, self._stamps_ns[place - 1], message)


# Actions that are no command, but what the robot was measured to do from one tick to the next.
#
# A part of the action says so by the key `measured` of the contract, which names an observation.
#
# =============================  =====================================================================
# velocity, by a measured pose   displacement, or rotation in the fixed frame, until the next tick
# velocity, by a measured one    the velocity at the next tick
# goal of a joint                where the joint is at the next tick; the nearer one of two goals
# =============================  =====================================================================

Observation = Mapping[str, npt.NDArray[Any]]
Numbers = npt.NDArray[np.float64]


class MeasuredMotion:
    """Computes the measured parts of an action."""

    def __init__(self, contract: RobotContract, spec: PolicySpec) -> None:
        self._contract, self._spec = contract, spec
        self._sinks = [sink for sink in contract.actions if sink.measured]

    @property
    def is_needed(self) -> bool:
        """Whether any part of the action is measured."""
        return bool(self._sinks)

    def action(
        self, commanded: npt.NDArray[np.float32], before: Observation, after: Observation
    ) -> npt.NDArray[np.float32]:
        """Return an action (A,) with its measured parts in place of those that were commanded.

        before, after: the observations of its tick and of the next one. Raises `MalformedObservation`
        for an orientation that is none.
        """
        values, goals = commanded.copy(), measured_goals(self._contract, self._spec, after)
        for sink in self._sinks:
            where = self._spec.action_slices[sink.name]
            if sink.type in MOTION_TYPES:
                values[where] = self._moved(sink, before, after)
            else:
                values[where] = goals[where]
        return values

    def _moved(self, sink: ActionSink, before: Observation, after: Observation) -> list[float]:
        tick_s = self._spec.control_dt_s
        source = next(each for each in self._contract.vectors if each.name == sink.measured)
        return [
            _velocity(source, field.path, before, after, tick_s)
            * (tick_s if sink.per_second else 1.0)
            / field.scale
            for field in sink.fields
        ]


def _velocity(
    source: VectorSource, path: str, before: Observation, after: Observation, tick_s: float
) -> float:
    """Return the measured velocity for a command's field, in the unit of the message."""
    kind, axis = path.split(".")[-2:]
    places = measured_places(source, path)
    was, now = (_numbers(source, places, seen) for seen in (before, after))
    if source.fields[places[0]].path.endswith(f"{kind}.{axis}"):
        return float(now[0])
    if len(places) == 1:
        return float(now[0] - was[0]) / tick_s
    rotation = rotation_between(_unit(was, source), _unit(now, source))
    return float(rotation["xyz".index(axis)]) / tick_s


def _numbers(source: VectorSource, places: tuple[int, ...], seen: Observation) -> Numbers:
    """Return what the message had at some places of an observation."""
    return np.array([float(seen[source.name][i]) / source.fields[i].scale for i in places])


def _unit(quaternion: Numbers, source: VectorSource) -> Numbers:
    length = float(np.linalg.norm(quaternion))
    if not 0.5 < length < 2.0:
        raise MalformedObservation(
            f"'{source.name}' ({source.topic}) has the orientation {quaternion.tolist()}, which is no "
            "rotation; check its driver"
        )
    return quaternion / length


# The messages of a tick as the policy sees them: its observation and its action.


def message_image_size(message: Any) -> tuple[int, int]:
    """Return the height and width of an image's message, compressed or not.

    Raises `UserError` if it cannot be read.
    """
    if hasattr(message, "height"):
        if not 0 < message.height * message.width <= MAX_PIXELS:
            raise UserError(
                f"an image claims {message.width}x{message.height} pixels; check the driver"
            )
        return int(message.height), int(message.width)
    try:
        return image_size(bytes(message.data))
    except OSError as error:
        raise UserError(f"a compressed image cannot be used: {error}; check the driver") from error


JOINTS = "sensor_msgs/JointState"


class JointTopics:
    """Completes the messages that have some of the joints each, in the order in which they came."""

    def __init__(self, contract: RobotContract) -> None:
        sources = [source for source in contract.inputs if source.type == JOINTS]
        self._joints = {
            topic: JointStates.of(*(s for s in sources if s.topic == topic))
            for topic in {source.topic for source in sources}
        }

    @property
    def topics(self) -> Collection[str]:
        """The topics of which every message is needed."""
        return self._joints.keys()

    def completed(self, topic: str, message: Any) -> Any:
        """Return a message with all joints of the contract seen so far; others' messages as they are."""
        if topic not in self._joints:
            return message
        self._joints[topic].add(message)
        return self._joints[topic].merged()


class TickValues:
    """Reads messages by a contract, as `policy_node` does.

    cmd_vel_stamped: base commands are TwistStamped messages; otherwise Twist.
    """

    def __init__(
        self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True
    ) -> None:
        self.contract, self.spec = contract, spec
        self._codec = CommandCodec(contract, spec, cmd_vel_stamped=cmd_vel_stamped)
        self.measured = MeasuredMotion(contract, spec)

    @property
    def types(self) -> dict[str, str]:
        """The message type of each topic."""
        commands = {topic: sinks[0].type for topic, sinks in self._codec.sinks.items()}
        return {source.topic: source.type for source in self.contract.inputs} | commands

    @property
    def live_types(self) -> dict[str, str]:
        """The message type of each topic that is recorded live: also of the one that says who drives."""
        return self.types | {DRIVER_TOPIC: "std_msgs/String"}

    @property
    def moving(self) -> Collection[str]:
        """The command topics that move the robot by velocity."""
        return [t for t, sinks in self._codec.sinks.items() if sinks[0].type in MOTION_TYPES]

    def observation(self, tick: Tick[Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the observation, or None while some of the joints were not seen.

        Raises `MalformedObservation` for what does not fit the contract.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        try:
            for image in self.contract.images:
                message, camera = tick.observation[image.topic], self.spec.camera(image.name)
                found[image.name] = image_to_frame(message, image, camera)
            for vector in self.contract.vectors:
                found[vector.name] = read_vector(tick.observation[vector.topic], vector)
        except MissingObservation:
            return None
        return found

    def action(self, tick: Tick[Any]) -> npt.NDArray[np.float32]:
        """Return the action (A,) that the commands of the tick say, without its measured parts."""
        commands = {t: m for t, m in tick.command.items() if t in self._codec.sinks}
        return self._codec.decode(commands)

    def intervention(self, tick: Tick[Any]) -> bool | None:
        """Return whether a person drove in the policy's place; None if no policy says who drives."""
        message = tick.command.get(DRIVER_TOPIC)
        return None if message is None else bool(message.data == PERSON)

    def executed(self, tick: Tick[Any]) -> npt.NDArray[np.float32] | None:
        """Return what the robot reports that it did in the tick before, (A,); None without a report."""
        source = self.contract.executed
        return None if source is None else read_vector(tick.observation[source.topic], source)
