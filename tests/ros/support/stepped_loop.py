"""A control loop whose ticks run whole, in one thread, at the test's own time."""

from __future__ import annotations

from ttm.policy.errors import ObservationError
from ttm_policy.control_loop import ControlLoop
from ttm_policy.inputs import StampedObservation, Vector


class SteppedLoop(ControlLoop):
    """Runs ticks and resets as a session does, but for the limits and the worker."""

    def step(self, observation: StampedObservation, now_s: float) -> tuple[Vector, Vector] | None:
        """Return the action and the command of a tick; None to stand still. now_s: on the stamps' clock."""
        if not self.accepts(observation, now_s, now_s):
            return None
        try:
            inference = self.infer(observation)
        except ObservationError as error:
            self.hold(error, now_s)
            return None
        command = self.finish(inference.action, now_s, observation)
        self.executed(command)
        return inference.action, command

    def reset(self, instruction: str) -> None:
        """Begin an episode with empty memory at tick 0."""
        self.runner.reset(instruction)
        self.begin_episode()
