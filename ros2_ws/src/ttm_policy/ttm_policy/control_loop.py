"""What one tick does: run the policy, hold, or stop. No ROS in here, so that time can be given by a test.

fresh observation            -> tick: one memory write, one command
late, malformed or missing   -> hold: stand still, nothing is written to memory; ticks resume by themselves
late for `stop_after_s`      -> stop: nothing moves until somebody resumes, since the scene may have changed
e-stop                       -> stop while it is true
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import ObservationError, StaleObservation
from ttm.policy.run.runner import PolicyRunner
from ttm_policy.limits import SafetyLimits

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StampedObservation:
    """`stamp_ns` is the oldest camera's capture time (without cameras, the oldest input's); `oldest_ns` counts all."""

    values: Mapping[str, npt.NDArray[Any]]
    stamp_ns: int
    oldest_ns: int


class State(Enum):
    """What the loop does now; the value is what diagnostics say."""

    NO_INSTRUCTION = "waiting for an instruction"
    WAITING = "waiting for the first observation"
    RUNNING = "running"
    HOLDING = "holding: the observation is late or bad"
    STOPPED = (
        "stopped: observations stayed away; reset the memory, or deactivate and activate, to go on"
    )
    E_STOP = "emergency stop"


LAST_STAMP = "last_stamp_ns"
STANDING_STILL = (State.HOLDING, State.STOPPED, State.E_STOP)
"""Where zero is commanded at every tick."""
_NO_TICKS = (State.NO_INSTRUCTION, State.STOPPED, State.E_STOP)


@dataclass(frozen=True)
class Tick:
    """A tick that ran: the policy's `action` (A,), and the `command` (A,) that the limits left of it."""

    action: Vector
    command: Vector


class ControlLoop:
    """Decides, tick by tick, between acting and standing still. `step` returns None when the robot must stand still."""

    def __init__(
        self, runner: PolicyRunner, limits: SafetyLimits, *, max_age_s: float, stop_after_s: float
    ):
        self.runner, self.limits = runner, limits
        self.max_age_s, self.stop_after_s = max_age_s, stop_after_s
        self.state = State.WAITING if runner.instruction else State.NO_INSTRUCTION
        self.problem = ""
        self.held_ticks = 0
        self.last_stamp_ns = 0
        """Of the newest observation in the memory."""
        self._last_good_s: float | None = None

    def step(self, observation: StampedObservation, now_s: float) -> Tick | None:
        """One tick at time `now_s` (s, the clock that stamps the observations)."""
        if self.state in _NO_TICKS:
            return None
        try:
            self._require_fresh(observation, now_s)
            action = self.runner.step(observation.values)
        except ObservationError as error:
            self.hold(error, now_s)
            return None
        self.state, self.problem, self._last_good_s = State.RUNNING, "", now_s
        self.last_stamp_ns = observation.stamp_ns
        return Tick(action.values, self.limits.apply(action.values))

    def _require_fresh(self, observation: StampedObservation, now_s: float) -> None:
        age_s = now_s - observation.oldest_ns * 1e-9
        if age_s > self.max_age_s:
            raise StaleObservation(
                f"the oldest input is {age_s:.2f} s old; at most {self.max_age_s} s is accepted: "
                "check the sensors, the clocks, or raise max_age_s"
            )

    def hold(self, error: ObservationError, now_s: float) -> None:
        """A tick without a usable observation. Before the first good one there is nothing to hold: the loop waits."""
        if self.state in _NO_TICKS:
            return
        self.problem = str(error)
        if self._last_good_s is None:
            return
        self.held_ticks += 1
        self.state = (
            State.STOPPED if now_s - self._last_good_s > self.stop_after_s else State.HOLDING
        )

    def reset(self, instruction: str) -> None:
        """Begin an episode: empty memory, tick 0."""
        self.runner.reset(instruction)
        self.resume()

    def snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """The runner's, and which observation it has seen last."""
        return {**self.runner.snapshot(), LAST_STAMP: np.array(self.last_stamp_ns, dtype=np.int64)}

    def restore(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a `snapshot`."""
        self.runner.restore(snapshot)
        self.last_stamp_ns = int(snapshot.get(LAST_STAMP, 0))
        self.resume()

    def resume(self) -> None:
        """Go on after a stop, with the memory as it is; an e-stop stays."""
        self._last_good_s, self.problem = None, ""
        if self.state is not State.E_STOP:
            self.state = State.WAITING if self.runner.instruction else State.NO_INSTRUCTION

    def set_e_stop(self, pressed: bool) -> None:
        """While pressed there are no ticks; released, the loop waits for a fresh observation."""
        if pressed:
            self.state = State.E_STOP
        elif self.state is State.E_STOP:
            self.state = State.WAITING
            self.resume()
