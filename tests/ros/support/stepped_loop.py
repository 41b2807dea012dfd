"""A control loop whose ticks run whole, in one thread, at the test's own time."""

from __future__ import annotations

from ttm.policy.errors import ObservationError
from ttm_policy.control_loop import ControlLoop, PolicyTick
from ttm_policy.inputs import StampedObservation


class SteppedLoop(ControlLoop):
    """Runs ticks and resets as a session does, but for the limits and the worker."""

    def step(self, observation: StampedObservation, now_s: float) -> PolicyTick | None:
        """Run a tick; None to stand still. now_s: on the clock that stamps the observations."""
        if not self.accepts(observation, now_s, now_s):
            return None
        try:
            inference = self.infer(observation)
        except ObservationError as error:
            self.hold(error, now_s)
            return None
        tick = self.finish(inference.action, now_s, observation)
        self.executed(tick.command)
        return tick

    def reset(self, instruction: str) -> None:
        """Begin an episode with empty memory at tick 0."""
        self.runner.reset(instruction)
        self.begin_episode()
