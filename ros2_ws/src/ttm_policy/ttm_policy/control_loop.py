"""Decides at each tick whether the policy acts, holds or stops, and watches what it depends on.

`ros2_ws/docs/safety.md` says what leads to each `LoopState`. A frame enters the memory at most once, unless
the contract lets it be repeated. The policy sees as previous action the one that was executed: what the robot
reports, or else the last command after its limits, or standing still after a stop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.node import Node
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm.policy.actor import Runner
from ttm.policy.errors import MissingObservation, ObservationError, StaleObservation
from ttm.policy.snapshot import require_fresh
from ttm_policy.guards import Arrivals, CommandEcho, EStopTopic
from ttm_policy.inputs import Inputs, StampedObservation, Vector
from ttm_policy.limits import SafetyLimits
from ttm_policy.parameters import PolicyParameters


class LoopState(Enum):
    """What the loop does now. The values are the texts of the diagnostics."""

    NO_INSTRUCTION = "waiting for an instruction"
    PREPARING = "preparing a new instruction"
    WAITING = "waiting for the first observation"
    RUNNING = "running"
    PAUSED = "waiting for a new camera frame"
    HOLDING = "holding: the observation or the policy is late or bad"
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
_NO_TICKS = {LoopState.NO_INSTRUCTION, LoopState.PREPARING, *STANDING_STILL} - {LoopState.HOLDING}


@dataclass(frozen=True)
class MemoryReport:
    """The state of a runner after a call, taken in the thread of the network."""

    instruction: str = ""
    tick: int = 0
    """Ticks, and so memory writes, since the reset."""
    norms: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """The norm of each part of the memory, (m,)."""

    @classmethod
    def of(cls, runner: Runner) -> MemoryReport:
        """Return the report of a runner that nobody else uses at this moment."""
        return cls(runner.instruction or "", runner.tick, runner.memory_norms)

    def to_message(self) -> Float32MultiArray:
        """Return [ticks since the reset, norm of each part of the memory]."""
        message = Float32MultiArray(data=[float(self.tick), *map(float, self.norms)])
        size = len(self.norms)
        message.layout.dim = [
            MultiArrayDimension(label="tick", size=1, stride=1 + size),
            MultiArrayDimension(label="memory_norms", size=size, stride=size),
        ]
        return message


@dataclass(frozen=True)
class PendingTick:
    """A tick whose observation the network works on."""

    observation: StampedObservation
    wall_s: float
    """When it began, on the steady clock."""
    reply_stamp: Time
    stops: int
    """How often the robot had been stopped before. After another stop the answer is void."""


@dataclass(frozen=True)
class Inference:
    """What the network made of an observation."""

    action: Vector
    """The policy's own action (A,), before the limits."""
    memory: MemoryReport = field(default_factory=MemoryReport)
    seconds: float = 0.0
    """How long the network took."""


class ControlLoop:
    """Runs the policy on good observations, and makes the robot stand still otherwise.

    It uses no ROS, so that tests can set the time. `infer`, `executed`, `stand_still`, `snapshot` and `load`
    belong to the thread of the network.
    """

    def __init__(self, runner: Runner, limits: SafetyLimits, parameters: PolicyParameters):
        self.runner, self.limits, self._parameters = runner, limits, parameters
        self.state, self.problem = LoopState.WAITING, ""
        self._rests = ""
        """Why the loop rests, or an empty text."""
        self._preparing, self._refusal = False, ""
        """Whether the newest instruction is being prepared, and why it cannot be used."""
        self.warning = ""
        """What a person should know of the running episode, until another one begins; or an empty text."""
        self.for_goal = False
        """Whether the memory is that of a goal. A reset sets this before the memory is saved."""
        self.held_ticks = 0
        self.last_stamp_ns = 0
        """Stamp of the newest observation in the memory."""
        self._last_good_s: float | None = None
        self._frames: Mapping[str, int] = {}
        self.begin_episode()

    @property
    def max_age_s(self) -> float:
        """The age in seconds up to which an observation can be used."""
        return self._parameters.max_age_s

    @property
    def description(self) -> str:
        """The state and its reason in words."""
        return f"{self.state.value}: {self.problem}" if self.problem else self.state.value

    def accepts(self, observation: StampedObservation, now_s: float, wall_s: float) -> bool:
        """Return whether the policy may act on the observation; hold if it is too old. wall_s: steady."""
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

    def infer(self, observation: StampedObservation, delay_s: float = 0.0) -> Inference:
        """Write the memory once, and return the policy's own action. Raises `ObservationError`."""
        started_s = time.perf_counter()
        seen = {**observation.values, **observation.see()}
        if observation.executed is not None and self.runner.tick:
            self.runner.executed(observation.executed)
        action = self.runner.step(seen, delay_s=delay_s).values
        self.last_stamp_ns, self._frames = observation.stamp_ns, observation.frames
        memory = MemoryReport.of(self.runner)
        return Inference(action, memory, time.perf_counter() - started_s)

    def require_in_time(self, observation: StampedObservation, now_s: float) -> float:
        """Return the age of the observation in seconds. Raises `StaleObservation` if it moves blindly."""
        age_s = now_s - observation.oldest_ns * 1e-9
        require_fresh(age_s, self.max_age_s + self.runner.spec.control_dt_s)
        return age_s

    def finish(
        self, action: Vector, wall_s: float, observation: StampedObservation, late_s: float = 0.0
    ) -> Vector:
        """Return the limited command (A,) of a tick that began at `wall_s`, on the steady clock.

        A stop that came since then stays in force. late_s: see `SafetyLimits.apply`.
        """
        if self.state not in _NO_TICKS:
            self.state, self.problem, self._last_good_s = LoopState.RUNNING, "", wall_s
        return self.limits.apply(action, observation.values, late_s=max(0.0, late_s))

    def executed(self, command: Vector) -> None:
        """Note the command (A,) in force, which is the previous action of the next tick."""
        if self.runner.tick:
            self.runner.executed(command)

    def stand_still(self) -> None:
        """Note that the robot was stopped, so that this is the previous action of the next tick."""
        self.executed(self.limits.stopped(self.runner.previous_action))

    def hold(self, error: ObservationError, wall_s: float, *, ticked: bool = True) -> None:
        """Stand still for want of a usable observation; before the first good one, only wait."""
        if self.state in _NO_TICKS:
            return
        self.problem = str(error)
        if self._last_good_s is None:
            return
        self.held_ticks += ticked
        too_long = wall_s - self._last_good_s > self._parameters.stop_after_s
        self.state = LoopState.STOPPED if too_long else LoopState.HOLDING

    def require_ticks(self, wall_s: float) -> None:
        """Raise `StaleObservation` if the loop runs, but has had no tick for too long."""
        period_s = self.runner.spec.control_dt_s
        limit_s = max(self.max_age_s, 1.5 * period_s) + period_s
        silence_s = wall_s - (self._last_good_s or wall_s)
        if self.state is LoopState.RUNNING and silence_s > limit_s:
            most = f"at most {limit_s:.3f} s is accepted"
            raise StaleObservation(f"the policy has decided nothing for {silence_s:.3f} s; {most}")

    def begin_episode(self, *, goal: bool = False) -> None:
        """Begin an episode with the memory as it is. goal: whether it belongs to a goal."""
        self._preparing, self.for_goal, self.warning = False, goal, ""
        only_goals = not self._parameters.start_on_instruction
        self._rests = WAIT_FOR_GOAL if only_goals and not goal else ""
        self.resume()

    def prepare(self) -> None:
        """Stop the ticks until `refuse` or `begin_episode`: the instruction in force is void."""
        self._preparing, self._refusal = True, ""
        self.resume()

    def refuse(self, problem: str) -> None:
        """Wait for another instruction, because the new one cannot be used."""
        self._preparing, self._refusal = False, problem
        self.resume()

    def rest(self, why: str) -> None:
        """Stand still until `begin_episode`, because a goal has ended. why: for the diagnostics."""
        self._preparing, self._rests = False, why
        self.resume()

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

    def set_e_stop(self, problem: str) -> None:
        """Stop the ticks while there is a problem; afterwards the loop waits for an observation."""
        if problem:
            self.state, self.problem = LoopState.E_STOP, problem
        elif self.state is LoopState.E_STOP:
            self.state = LoopState.WAITING
            self.resume()

    def take_parameters(self, parameters: PolicyParameters) -> None:
        """Take other limits and ages from the next tick on."""
        self._parameters = parameters
        self.limits.set_limits(parameters.limits)

    def snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """Return the runner's snapshot, the stamp of its last observation, and whether it has a goal."""
        return {
            **self.runner.snapshot(),
            LAST_STAMP: np.array(self.last_stamp_ns, dtype=np.int64),
            FOR_GOAL: np.array(self.for_goal),
        }

    def load(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over the memory of a `snapshot`. Goals end with their process, so that one of a goal rests."""
        self.runner.restore(snapshot)
        self.last_stamp_ns = int(snapshot.get(LAST_STAMP, 0))
        self.for_goal = bool(snapshot.get(FOR_GOAL, False))
        if self.for_goal:
            self._rests = GOAL_LOST


class Watchdog:
    """Checks on the steady clock that the policy sees the robot as it is, and that it alone commands it.

    It changes the state of a `ControlLoop`, and commands nothing. In lockstep only the emergency stop counts.
    """

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        inputs: Inputs,
        e_stop: EStopTopic,
        echo: CommandEcho | None,
    ):
        """echo: what notices commands of others; None in lockstep."""
        self._node, self._loop, self._inputs = node, loop, inputs
        self._e_stop, self._echo = e_stop, echo
        self._clock = Arrivals()
        self.waits_for_frame = False
        """Whether a tick is due that waits for a new frame of a camera."""

    def check_e_stop(self) -> None:
        """Bring the loop into the state that the emergency stop asks for."""
        self._loop.set_e_stop(self._e_stop.problem)

    def allows_tick(self) -> bool:
        """Return whether the tick that is due may run now. If not, the loop holds or waits."""
        self.waits_for_frame = False
        try:
            self._require_sight()
        except ObservationError as error:
            self._loop.hold(error, time.monotonic())
            return False
        self.waits_for_frame = self.lacks_frame()
        return not self.waits_for_frame

    def lacks_frame(self) -> bool:
        """Return whether a camera has sent no frame yet that the memory has not seen."""
        now_s = self._node.get_clock().now().nanoseconds * 1e-9
        return self._loop.lacks_frame(self._inputs.frames(), now_s, time.monotonic())

    def check_between_ticks(self) -> None:
        """Let the loop hold if the policy sees the robot no more, or decides nothing."""
        try:
            self._require_sight()
            self._loop.require_ticks(time.monotonic())
        except ObservationError as error:
            self._loop.hold(error, time.monotonic(), ticked=False)

    def observe_for_person(self) -> tuple[Mapping[str, npt.NDArray[Any]], float]:
        """Return what is measured and the ROS time of its oldest value (s), if a person may drive."""
        if self._loop.state is LoopState.E_STOP:
            raise MissingObservation(self._loop.description)
        if self._e_stop.stopped:
            raise MissingObservation(LoopState.E_STOP.value)
        if self._echo is None:  # in lockstep a person drives from tick to tick
            return {}, 0.0
        self._require_sight()
        observation = self._inputs.observation()
        return observation.values, observation.oldest_ns * 1e-9

    def _require_sight(self) -> None:
        """Raise `ObservationError` if the policy must not move the robot now, with the reason."""
        now_ns, wall_s = self._node.get_clock().now().nanoseconds, time.monotonic()
        self._clock.add("the clock of ROS (/clock)", now_ns, wall_s)
        self._clock.require_alive(wall_s, self._loop.max_age_s)
        self._inputs.require_trusted(now_ns, wall_s, self._loop.max_age_s)
        if self._echo is not None:
            self._echo.require_alone(wall_s)
