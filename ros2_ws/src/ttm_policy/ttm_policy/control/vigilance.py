"""Lets the loop tick only while the policy sees the robot, and the emergency stop allows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from ttm.policy.errors import MissingObservation, ObservationError
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.control.control_loop import ControlLoop, LoopState
from ttm_policy.guards.command_echo import CommandEcho
from ttm_policy.guards.e_stop import EStop
from ttm_policy.guards.e_stop_topic import EStopTopic
from ttm_policy.guards.stop_thread import StopThread
from ttm_policy.guards.watchdog import Watchdog
from ttm_policy.inputs.inputs import Inputs
from ttm_policy.parameters import PolicyParameters


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
