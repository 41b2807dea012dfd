"""A person drives: asks the sources, and sends what they want, or stops the robot."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ttm.policy.errors import ObservationError
from ttm_policy.inputs.person_command import PERIOD_S
from ttm_policy.parameters import DrivingParameters
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.drivers import Drivers
from ttm_policy.teleop.policy_output import PolicyOutput
from ttm_policy.teleop.robot_output import RobotOutput
from ttm_policy.teleop.source import Source, Vector

UNHEARD_AFTER_S = 3.0
"""What was never heard is told so long after the start; a publisher may start with the session."""


class Output(Protocol):
    """Where the person's wishes go."""

    moves: bool
    """Whether a wish is in force."""

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text."""

    def send(self, wish: Vector) -> None:
        """Send a wish (A,). Raises `ObservationError` if that cannot be."""

    def rest(self) -> None:
        """Stop the robot if it moves. This is called again and again while nobody wants anything."""

    def give_back(self) -> None:
        """Let a policy drive again."""

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits from the next command on."""

    def flush(self) -> None:
        """Wait until the last commands have arrived."""

    def close(self) -> None:
        """Destroy all topics."""


class TeleopSession:
    """Connects sources to the robot. It sends nothing before somebody touches the controls.

    make_sources: makes the devices, of which one may drive at a time.
    """

    def __init__(
        self,
        node: Node,
        cockpit: Cockpit,
        parameters: DrivingParameters,
        make_sources: Callable[[Cockpit], Sequence[Source]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """on_change: called when `driver` or `problem` has changed."""
        self._node, self._on_change = node, on_change
        self._drivers = Drivers(make_sources(cockpit))
        self._output: Output = (
            PolicyOutput(node, cockpit, parameters.policy)
            if parameters.policy
            else RobotOutput(node, cockpit, parameters, period_s=PERIOD_S, on_e_stop=self.step)
        )
        self.problem = ""
        """Why the robot does not do what the person wants, or an empty text."""
        self.unheard = ""
        """What the controls name and was not heard since the start, or an empty text."""
        self._begun_s = time.monotonic()
        # On the steady clock, since simulated time may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(PERIOD_S, self.step, clock=steady)

    @property
    def driver(self) -> str:
        """The name of the source that moves the robot now, or an empty text."""
        return self._drivers.driver if self._output.moves else ""

    def step(self) -> None:
        """Send what the driver wants now. This is called at every `PERIOD_S`, and may be between."""
        before = self.driver, _without_numbers(self.problem), self.unheard
        now_s = time.monotonic()
        wish = self._drivers.wish(now_s)
        refusal = self._send(wish) if wish is not None else ""
        if wish is None or refusal:
            self._output.rest()
        if self._drivers.give_back():
            self._output.give_back()
        self.problem = refusal or self._drivers.problem or self._output.problem
        if now_s - self._begun_s >= UNHEARD_AFTER_S:
            self.unheard = self._drivers.unheard
        problem = _without_numbers(self.problem)
        if (self.driver, problem, self.unheard) != before:
            if problem not in ("", before[1]):
                self._node.get_logger().warning(self.problem)
            if self.unheard not in ("", before[2]):
                self._node.get_logger().warning(self.unheard)
            self._on_change()

    def _send(self, wish: Vector) -> str:
        """Send what is wanted, and return an empty text, or why it cannot be."""
        if problem := self._output.problem:
            return problem
        try:
            self._output.send(wish)
        except ObservationError as error:
            return str(error)
        return ""

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits from the next command on. limits: the values of all limit parameters."""
        self._output.take_limits(limits)

    def close(self) -> None:
        """Stop the robot, and let go of devices and topics."""
        self._node.destroy_timer(self._timer)
        self._drivers.close()
        self._output.rest()
        self._output.flush()
        self._output.close()

    def diagnosis(self, name: str) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        is_well = not self.problem and not self.unheard
        level = DiagnosticStatus.OK if is_well else DiagnosticStatus.WARN
        text = self.problem or (f"{self.driver} drives" if self.driver else "nobody drives")
        text = f"{text}; {self.unheard}" if self.unheard else text
        return DiagnosticStatus(name=name, hardware_id="ttm_policy", level=level, message=text)


def _without_numbers(problem: str) -> str:
    """Return a problem without the ages in it, which change from step to step."""
    return re.sub(r"[\d.]+", "", problem)
