"""Decides at each tick whether the policy acts, holds or stops.

It uses no ROS, so that tests can set the time.

=============================  ===============================================================
fresh observation              tick: one memory write, one command
late, malformed or missing     hold: stand still, memory unchanged; ticks resume by themselves
no new camera frame            pause: the last command ends, then stand still until it comes
no good one for stop_after_s   stop: stand still until `resume`, since the scene may have changed
emergency stop                 stop until it is released and armed again
a goal has ended               rest: stand still until the next goal, or another episode, begins
=============================  ===============================================================

A frame enters the memory at most once, unless the contract lets it be repeated. How long ago the last
good observation was is measured on a steady clock, since the clock of ROS may stop or jump.

The previous action that the policy sees is the one that was executed: what the robot reports, or else
the last command after its limits, or to stand still after a stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm.policy.errors import MissingObservation, ObservationError, StaleObservation
from ttm.policy.runner import PolicyRunner
from ttm.policy.snapshot import require_fresh
from ttm_policy.contract import RAMP
from ttm_policy.guards import CommandEcho, EStop, EStopTopic, StopThread, Watchdog
from ttm_policy.inputs import Inputs, StampedObservation
from ttm_policy.limits import SafetyLimits
from ttm_policy.messages import CommandCodec
from ttm_policy.parameters import PolicyParameters

Vector = npt.NDArray[np.float32]


class LoopState(Enum):
    """What the loop does now. The values are the texts of the diagnostics."""

    NO_INSTRUCTION = "waiting for an instruction"
    PREPARING = "preparing a new instruction"
    WAITING = "waiting for the first observation"
    RUNNING = "running"
    PAUSED = "waiting for a new camera frame"
    HOLDING = "holding: the observation is late or bad"
    STOPPED = (
        "stopped: observations stayed away; reset the memory, or deactivate and activate, to go on"
    )
    E_STOP = "emergency stop"
    RESTING = "standing still"


WAIT_FOR_GOAL = "call the service start to begin a goal"
"""Why a policy rests that moves for goals alone."""
GOAL_LOST = "the process that carried out its goal has ended"
"""Why a policy rests whose memory was that of a goal of another process."""
FOR_GOAL = "for_goal"
"""Name under which a snapshot keeps whether its episode belongs to a goal."""
LAST_STAMP = "last_stamp_ns"
"""Name under which a snapshot keeps the stamp of the newest observation in the memory."""
STANDING_STILL = (LoopState.HOLDING, LoopState.STOPPED, LoopState.E_STOP, LoopState.RESTING)
"""The states in which every tick commands zero. In a pause, the last command lives out its lifespan."""
_NO_TICKS = (
    LoopState.NO_INSTRUCTION,
    LoopState.PREPARING,
    LoopState.STOPPED,
    LoopState.E_STOP,
    LoopState.RESTING,
)


@dataclass(frozen=True)
class PolicyTick:
    """The result of a tick: the policy's `action` (A,) and the limited `command` (A,)."""

    action: Vector
    command: Vector


class ControlLoop:
    """Runs the policy on good observations, and makes the robot stand still otherwise."""

    def __init__(
        self,
        runner: PolicyRunner,
        limits: SafetyLimits,
        *,
        max_age_s: float,
        stop_after_s: float,
        only_goals: bool = False,
    ):
        """only_goals: whether the policy rests unless it carries out a goal."""
        self.runner, self.limits = runner, limits
        self.max_age_s, self.stop_after_s = max_age_s, stop_after_s
        self._only_goals = only_goals
        self.state, self.problem = LoopState.WAITING, ""
        self._rests = ""
        """Why the loop rests, or an empty text."""
        self._preparing, self._refusal = False, ""
        """Whether the newest instruction is being prepared, and why it cannot be used, or an empty text."""
        self.warning = ""
        """What a person should know of the running episode, until another one begins; or an empty text."""
        self.for_goal = False
        """Whether the memory is that of a goal. Whoever resets it says so before it is saved."""
        self.held_ticks = 0
        self.last_stamp_ns = 0
        """Stamp of the newest observation in the memory."""
        self._last_good_s: float | None = None
        self._frames: Mapping[str, int] = {}
        self.reopen()

    @property
    def description(self) -> str:
        """The state, and why it is that, in words."""
        return f"{self.state.value}: {self.problem}" if self.problem else self.state.value

    def step(self, observation: StampedObservation, now_s: float) -> PolicyTick | None:
        """Run one tick: `begin`, `think`, `finish` and `acted`. Return None to stand still.

        now_s: the time in seconds on the clock that stamps the observations. A node calls the four
        parts by themselves, since `think` and `acted` belong to the thread of the network.
        """
        if not self.begin(observation, now_s):
            return None
        try:
            action = self.think(observation)
        except ObservationError as error:
            self.hold(error, now_s)
            return None
        tick = self.finish(action, now_s, observation)
        self.acted(tick.command)
        return tick

    def begin(
        self, observation: StampedObservation, now_s: float, wall_s: float | None = None
    ) -> bool:
        """Return whether the policy may act on the observation. If it is too old, hold.

        wall_s: the time on a steady clock, in seconds; `now_s` if it is None.
        """
        wall_s = now_s if wall_s is None else wall_s
        if self.state in _NO_TICKS:
            return False
        try:
            for stamp_ns in (observation.oldest_ns, observation.newest_ns or observation.oldest_ns):
                require_fresh(now_s - stamp_ns * 1e-9, self.max_age_s)
        except ObservationError as error:
            self.hold(error, wall_s)
            return False
        return not self.lacks_frame(observation.frames, now_s, wall_s)

    def lacks_frame(self, frames: Mapping[str, int], now_s: float, wall_s: float) -> bool:
        """Return whether a camera has no frame yet that is newer than the one in the memory.

        The command of the last tick then stays in force; if it is older than a tick and a half, pause.
        frames: the stamp of the newest frame of each camera.
        """
        if any(stamp * 1e-9 > now_s + self.max_age_s for stamp in self._frames.values()):
            self._frames = {}  # The clock was set back, so that these stamps say nothing any more.
        late = [name for name, stamp in frames.items() if stamp <= self._frames.get(name, -1)]
        overdue_s = 1.5 * self.runner.spec.control_dt_s
        started = self.state is LoopState.RUNNING and self._last_good_s is not None
        if late and started and wall_s - (self._last_good_s or 0.0) > overdue_s:
            self.state = LoopState.PAUSED
            rate = self.runner.spec.rate_hz
            self.problem = f"camera '{late[0]}' is slower than the {rate:g} Hz of the policy"
        return bool(late)

    def think(self, observation: StampedObservation, delay_s: float = 0.0) -> Vector:
        """Write the memory once, and return the policy's own action (A,).

        delay_s: see `PolicyRunner.step`.
        Raises `ObservationError` for an observation that must not enter the memory.
        """
        seen = {**observation.values, **observation.see()}
        if observation.executed is not None and self.runner.tick:
            self.runner.executed(observation.executed)
        values = self.runner.step(seen, delay_s=delay_s).values
        self.last_stamp_ns, self._frames = observation.stamp_ns, observation.frames
        return values

    def require_in_time(self, observation: StampedObservation, now_s: float) -> float:
        """Return the age of the observation in seconds.

        Raises `StaleObservation` if the network took so long that its answer would move blindly.
        now_s: as for `step`.
        """
        limit_s = self.max_age_s + self.runner.spec.control_dt_s
        age_s = now_s - observation.oldest_ns * 1e-9
        require_fresh(age_s, limit_s)
        return age_s

    def finish(
        self, action: Vector, wall_s: float, observation: StampedObservation, late_s: float = 0.0
    ) -> PolicyTick:
        """Return the tick with its limited command. wall_s: the steady time at which it began.

        A stop that came since then stays in force. late_s: see `SafetyLimits.apply`.
        """
        if self.state not in _NO_TICKS:
            self.state, self.problem, self._last_good_s = LoopState.RUNNING, "", wall_s
        return PolicyTick(
            action, self.limits.apply(action, observation.values, late_s=max(0.0, late_s))
        )

    def acted(self, command: Vector) -> None:
        """Note the command (A,) in force, which is the previous action of the next tick."""
        if self.runner.tick:
            self.runner.executed(command)

    def take_parameters(self, parameters: PolicyParameters) -> None:
        """Take other limits and ages from the next tick on."""
        self.max_age_s, self.stop_after_s = parameters.max_age_s, parameters.stop_after_s
        self.limits.set_limits(parameters.limits)

    def stand_still(self) -> None:
        """Note that the robot was stopped, so that this is the previous action of the next tick."""
        if self.runner.tick:
            self.runner.executed(self.limits.stopped(self.runner.previous_action))

    def hold(self, error: ObservationError, wall_s: float, *, ticked: bool = True) -> None:
        """Stand still for want of a usable observation. Before the first good one, only wait.

        wall_s: the time on a steady clock, in seconds. ticked: whether this costs a tick.
        """
        if self.state in _NO_TICKS:
            return
        self.problem = str(error)
        if self._last_good_s is None:
            return
        self.held_ticks += ticked
        too_long = wall_s - self._last_good_s > self.stop_after_s
        self.state = LoopState.STOPPED if too_long else LoopState.HOLDING

    def require_ticks(self, wall_s: float) -> None:
        """Raise `StaleObservation` if the loop runs, but has had no tick for too long."""
        period_s = self.runner.spec.control_dt_s
        limit_s = max(self.max_age_s, 1.5 * period_s) + period_s
        silence_s = wall_s - (self._last_good_s or wall_s)
        if self.state is LoopState.RUNNING and silence_s > limit_s:
            raise StaleObservation(
                f"the policy has decided nothing for {silence_s:.3f} s; at most {limit_s:.3f} s is "
                "accepted: is the computer overloaded, or the network too slow?"
            )

    def reset(self, instruction: str) -> None:
        """Begin an episode with empty memory at tick 0."""
        self.runner.reset(instruction)
        self.reopen()

    def prepare(self) -> None:
        """Stop the ticks until `refuse` or `reopen`, because the instruction in force is void."""
        self._preparing, self._refusal = True, ""
        self.resume()

    def refuse(self, problem: str) -> None:
        """Wait for another instruction, because the new one cannot be used."""
        self._preparing, self._refusal = False, problem
        self.resume()

    def snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """Return the runner's snapshot, the stamp of its last observation, and whether it has a goal."""
        return {
            **self.runner.snapshot(),
            LAST_STAMP: np.array(self.last_stamp_ns, dtype=np.int64),
            FOR_GOAL: np.array(self.for_goal),
        }

    def load(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over the memory of a `snapshot`. This belongs to the thread of the network.

        If it is that of a goal, the loop rests until `reopen`, since goals end with their process.
        """
        self.runner.restore(snapshot)
        self.last_stamp_ns = int(snapshot.get(LAST_STAMP, 0))
        self.for_goal = bool(snapshot.get(FOR_GOAL, False))
        if self.for_goal:
            self._rests = GOAL_LOST

    def resume(self) -> None:
        """Continue after a stop with the memory as it is. An emergency stop and a rest stay in force."""
        self._last_good_s = None
        if self.state is LoopState.E_STOP:
            return
        self.problem = ""
        if self._preparing:
            self.state = LoopState.PREPARING
        elif not self.runner.instruction:
            self.state, self.problem = LoopState.NO_INSTRUCTION, self._refusal
        elif self._rests:
            self.state, self.problem = LoopState.RESTING, self._rests
        else:
            self.state = LoopState.WAITING

    def rest(self, why: str) -> None:
        """Stand still until `reopen`, because a goal has ended. why: for the diagnostics."""
        self._preparing, self._rests = False, why
        self.resume()

    def reopen(self, *, goal: bool = False) -> None:
        """Begin an episode with the memory as it is. goal: whether it belongs to a goal."""
        self._preparing, self.for_goal, self.warning = False, goal, ""
        self._rests = WAIT_FOR_GOAL if self._only_goals and not goal else ""
        self.resume()

    def set_e_stop(self, stopped: bool, problem: str = "") -> None:
        """Stop the ticks while `stopped`; afterwards the loop waits for an observation.

        problem: why, for the diagnostics.
        """
        if stopped:
            self.state, self.problem = LoopState.E_STOP, problem
        elif self.state is LoopState.E_STOP:
            self.state = LoopState.WAITING
            self.resume()


# Lets the loop tick only while the policy sees the robot, and the emergency stop allows it.


class Vigilance:
    """Changes the state of a `ControlLoop` by what it sees. It commands nothing by itself.

    `on_watch` is called twice a period on the steady clock, and `on_e_stop` at each message of the
    emergency stop. `echo` wants to know of every command that is sent. In lockstep only the emergency
    stop counts: the simulator stands still while it waits, however slow either of the two is.
    disarmed: why the robot stands still until `~/rearm`, or an empty text.
    """

    def __init__(
        self,
        stop: StopThread,
        loop: ControlLoop,
        inputs: Inputs,
        codec: CommandCodec,
        parameters: PolicyParameters,
        *,
        disarmed: str,
        on_watch: Callable[[], None],
        on_e_stop: Callable[[], None],
    ):
        node = stop.owner
        self._node, self._loop, self._inputs = node, loop, inputs
        self.due = False
        """Whether a tick waits for a new frame of a camera."""
        self.echo = None if parameters.lockstep else CommandEcho(node, codec.types())
        period_s = codec.spec.control_dt_s
        self._watchdog = Watchdog(node, inputs, self.echo, period_s=period_s, on_watch=on_watch)
        e_stop = EStop(
            rearm=parameters.e_stop_rearm, timeout_s=parameters.e_stop_timeout_s, disarmed=disarmed
        )
        self._e_stop = EStopTopic(stop, e_stop, on_e_stop)

    def lets_tick(self) -> bool:
        """Return whether the tick that is due may run now. If not, the loop holds or waits."""
        try:
            self._watchdog.require_sight(self._loop.max_age_s)
        except ObservationError as error:
            self._loop.hold(error, time.monotonic())
            self.due = False
            return False
        self.due = self.lacks_frame()
        return not self.due

    def look_for_person(self) -> tuple[Mapping[str, npt.NDArray[Any]], float]:
        """Return what is measured now, and when its oldest value was, on the clock of ROS, in seconds.

        Raises `ObservationError` if a person must not drive, either.
        """
        if self._loop.state is LoopState.E_STOP:
            raise MissingObservation(f"{self._loop.state.value}: {self._loop.problem}")
        if self.echo is None:  # in lockstep a person drives from tick to tick
            return {}, 0.0
        self._watchdog.require_sight(self._loop.max_age_s)
        observation = self._inputs.observation()
        return observation.values, observation.oldest_ns * 1e-9

    def lacks_frame(self) -> bool:
        """Return whether a camera has sent no frame yet that the memory has not seen."""
        now_s = self._node.get_clock().now().nanoseconds * 1e-9
        return self._loop.lacks_frame(self._inputs.frames(), now_s, time.monotonic())

    def look(self) -> None:
        """Between two ticks, let the loop hold if the policy sees the robot no more, or is stuck."""
        try:
            self._watchdog.require_sight(self._loop.max_age_s)
            self._loop.require_ticks(time.monotonic())
        except ObservationError as error:
            self._loop.hold(error, time.monotonic(), ticked=False)

    def heed_e_stop(self) -> None:
        """Bring the loop into the state that the emergency stop asks for."""
        problem = self._e_stop.problem
        self._loop.set_e_stop(bool(problem), problem)

    def close(self) -> None:
        """Destroy all topics and timers."""
        self._watchdog.close()
        self._e_stop.close()


# Keeps a command in force between two ticks, for as long as it may live.
#
# It uses no ROS, so that tests can set the time. Controllers such as MoveIt Servo stop a tenth of a
# second after a command; a policy thinks longer than that. Its command is therefore sent again and
# again, until the next one comes or its lifespan ends.


class HeldCommand:
    """The command in force, as a function of time."""

    def __init__(self, smooth: npt.NDArray[np.bool_], *, period_s: float, lifespan_s: float):
        """smooth: (A,), the values that change linearly and not at once, over `RAMP` of `period_s`.

        lifespan_s: that of commands that have none of their own.
        """
        self._smooth, self._ramp_s, self._lifespan_s = smooth, RAMP * period_s, lifespan_s
        self._old: Vector = np.zeros(smooth.shape, np.float32)
        self._new: Vector | None = None
        self._begin_s, self._lives_s = 0.0, lifespan_s

    @property
    def in_force(self) -> bool:
        """Whether a command was begun that was not stopped since. Its lifespan may have ended."""
        return self._new is not None

    def begin(self, command: Vector, now_s: float, lifespan_s: float | None = None) -> None:
        """Let a new command (A,) follow the one before, or standing still if there is none.

        lifespan_s: that of this command; None for the usual one.
        """
        before = self.at(now_s)
        self._old = np.zeros_like(command) if before is None else before
        self._new, self._begin_s = command, now_s
        self._lives_s = self._lifespan_s if lifespan_s is None else lifespan_s

    def at(self, now_s: float) -> Vector | None:
        """Return the command (A,) at a time, or None if there is none or its lifespan has ended.

        A clock that was set back ends the lifespan, too.
        """
        age_s = now_s - self._begin_s
        if self._new is None or not 0 <= age_s <= self._lives_s:
            return None
        share = np.where(self._smooth, min(1.0, age_s / self._ramp_s), 1.0).astype(np.float32)
        # Where the share is 1 the bits of the command stay as they are.
        return np.where(share < 1.0, self._old + share * (self._new - self._old), self._new)

    def stop(self) -> None:
        """Let nothing be in force any more."""
        self._new = None


# What is told about the memory while the network may be at work on the next tick.


@dataclass(frozen=True)
class MemoryReport:
    """The state of a runner after a call, taken in the thread of the network."""

    instruction: str = ""
    """The instruction in force, or ""."""
    tick: int = 0
    """Ticks, and so memory writes, since the reset."""
    norms: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """The norm of each part of the memory, (m,)."""

    @classmethod
    def of(cls, runner: PolicyRunner) -> MemoryReport:
        """Return the report of a runner that nobody else uses at this moment."""
        return cls(runner.instruction or "", runner.tick, runner.memory_norms)

    @property
    def norm(self) -> float:
        """The norm of the whole memory."""
        return float(np.linalg.norm(self.norms))

    def to_message(self) -> Float32MultiArray:
        """Return [ticks since the reset, norm of each part of the memory]."""
        message = Float32MultiArray(data=[float(self.tick), *map(float, self.norms)])
        size = len(self.norms)
        message.layout.dim = [
            MultiArrayDimension(label="tick", size=1, stride=1 + size),
            MultiArrayDimension(label="memory_norms", size=size, stride=size),
        ]
        return message


# What is handed to the thread of the network, and what comes back.


@dataclass(frozen=True)
class Thought:
    """What the network made of an observation."""

    action: Vector
    """The policy's own action (A,)."""
    memory: MemoryReport
    seconds: float
    """How long the network took."""


@dataclass(frozen=True)
class Question:
    """An observation that the network is at work on."""

    observation: StampedObservation
    wall_s: float
    """When it began, on the steady clock."""
    reply_stamp: Time
    stops: int
    """How often the robot had been stopped before. A stop in between makes the answer void."""


def think_about(loop: ControlLoop, question: Question, delay_s: float) -> Thought:
    """Run the network; in the thread of the network. delay_s: see `PolicyRunner.step`."""
    started_s = time.perf_counter()
    action = loop.think(question.observation, delay_s)
    report = MemoryReport.of(loop.runner)
    return Thought(action, report, time.perf_counter() - started_s)
