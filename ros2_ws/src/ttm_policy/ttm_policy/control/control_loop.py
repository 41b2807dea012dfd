"""Decides at each tick whether the policy acts, holds or stops.

It uses no ROS, so that tests can set the time.

=============================  ===============================================================
fresh observation              tick: one memory write, one command
late, malformed or missing     hold: stand still, memory unchanged; ticks resume by themselves
no good one for stop_after_s   stop: stand still until `resume`, since the scene may have changed
emergency stop                 stop while it is pressed
=============================  ===============================================================

The previous action that the policy sees is the one that was executed: what the robot reports, or else
the last command after its limits, or to stand still after a stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import ObservationError
from ttm.policy.run.freshness import require_fresh
from ttm.policy.run.runner import PolicyRunner
from ttm_policy.contract.safety_limits import SafetyLimits

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StampedObservation:
    """An observation with its times of capture in nanoseconds.

    `stamp_ns` is that of the oldest camera frame (without cameras, of the oldest input),
    `oldest_ns` that of the oldest of all inputs. `executed`, (A,), is what the robot reports that it
    did at the last tick; None if it reports nothing.
    """

    values: Mapping[str, npt.NDArray[Any]]
    stamp_ns: int
    oldest_ns: int
    executed: Vector | None = None


class LoopState(Enum):
    """What the loop does now. The values are the texts of the diagnostics."""

    NO_INSTRUCTION = "waiting for an instruction"
    WAITING = "waiting for the first observation"
    RUNNING = "running"
    HOLDING = "holding: the observation is late or bad"
    STOPPED = (
        "stopped: observations stayed away; reset the memory, or deactivate and activate, to go on"
    )
    E_STOP = "emergency stop"


LAST_STAMP = "last_stamp_ns"
"""Name under which a snapshot keeps the stamp of the newest observation in the memory."""
STANDING_STILL = (LoopState.HOLDING, LoopState.STOPPED, LoopState.E_STOP)
"""The states in which every tick commands zero."""
_NO_TICKS = (LoopState.NO_INSTRUCTION, LoopState.STOPPED, LoopState.E_STOP)


@dataclass(frozen=True)
class PolicyTick:
    """The result of a tick: the policy's `action` (A,) and the limited `command` (A,)."""

    action: Vector
    command: Vector


class ControlLoop:
    """Runs the policy on good observations, and makes the robot stand still otherwise."""

    def __init__(
        self, runner: PolicyRunner, limits: SafetyLimits, *, max_age_s: float, stop_after_s: float
    ):
        self.runner, self.limits = runner, limits
        self.max_age_s, self.stop_after_s = max_age_s, stop_after_s
        self.state = LoopState.WAITING if runner.instruction else LoopState.NO_INSTRUCTION
        self.problem = ""
        self.held_ticks = 0
        self.last_stamp_ns = 0
        """Stamp of the newest observation in the memory."""
        self._last_good_s: float | None = None

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
        tick = self.finish(observation, action, now_s)
        self.acted(tick.command)
        return tick

    def begin(self, observation: StampedObservation, now_s: float) -> bool:
        """Return whether the policy may act on the observation. If it is too old, hold."""
        if self.state in _NO_TICKS:
            return False
        try:
            require_fresh(now_s - observation.oldest_ns * 1e-9, self.max_age_s)
        except ObservationError as error:
            self.hold(error, now_s)
            return False
        return True

    def think(self, observation: StampedObservation) -> Vector:
        """Write the memory once, and return the policy's own action (A,).

        Raises `ObservationError` for an observation that must not enter the memory.
        """
        if observation.executed is not None and self.runner.tick:
            self.runner.executed(observation.executed)
        return self.runner.step(observation.values).values

    def finish(self, observation: StampedObservation, action: Vector, now_s: float) -> PolicyTick:
        """Return the tick with its limited command. now_s: the time at which it began."""
        self.state, self.problem, self._last_good_s = LoopState.RUNNING, "", now_s
        self.last_stamp_ns = observation.stamp_ns
        return PolicyTick(action, self.limits.apply(action))

    def acted(self, command: Vector) -> None:
        """Note the command (A,) in force, which is the previous action of the next tick."""
        if self.runner.tick:
            self.runner.executed(command)

    def stand_still(self) -> None:
        """Note that the robot was stopped, so that this is the previous action of the next tick."""
        if self.runner.tick:
            self.runner.executed(self.limits.stopped(self.runner.previous_action))

    def hold(self, error: ObservationError, now_s: float) -> None:
        """Account for a tick without a usable observation.

        Before the first good one, the loop only waits.
        """
        if self.state in _NO_TICKS:
            return
        self.problem = str(error)
        if self._last_good_s is None:
            return
        self.held_ticks += 1
        too_long = now_s - self._last_good_s > self.stop_after_s
        self.state = LoopState.STOPPED if too_long else LoopState.HOLDING

    def reset(self, instruction: str) -> None:
        """Begin an episode with empty memory at tick 0."""
        self.runner.reset(instruction)
        self.resume()

    def snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """Return the runner's snapshot with the stamp of the last observation that it has seen."""
        return {**self.runner.snapshot(), LAST_STAMP: np.array(self.last_stamp_ns, dtype=np.int64)}

    def restore(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a `snapshot`."""
        self.runner.restore(snapshot)
        self.last_stamp_ns = int(snapshot.get(LAST_STAMP, 0))
        self.resume()

    def resume(self) -> None:
        """Continue after a stop with the memory as it is.

        A pressed emergency stop stays in force.
        """
        self._last_good_s, self.problem = None, ""
        if self.state is not LoopState.E_STOP:
            self.state = LoopState.WAITING if self.runner.instruction else LoopState.NO_INSTRUCTION

    def set_e_stop(self, pressed: bool) -> None:
        """Stop the ticks while the emergency stop is pressed.

        Afterwards the loop waits for an observation.
        """
        if pressed:
            self.state = LoopState.E_STOP
        elif self.state is LoopState.E_STOP:
            self.state = LoopState.WAITING
            self.resume()
