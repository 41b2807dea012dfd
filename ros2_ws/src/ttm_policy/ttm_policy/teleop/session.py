"""A person drives: asks the sources, and sends what they want, or stops the robot."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ttm.policy.errors import ObservationError
from ttm_policy.inputs import PERIOD_S
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import DrivingParameters
from ttm_policy.programs import warn_of_duplicates
from ttm_policy.teleop.outputs import PolicyOutput, RobotOutput
from ttm_policy.teleop.source import Cockpit, Source, Vector

# Lets one of several sources drive at a time. It uses no ROS, so that tests can set the time.


class Drivers:
    """Chooses whose wish counts.

    Whoever touches the controls first drives until he lets go of them. Who touches others meanwhile is
    refused, and of two who begin together both are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._driver: Source | None = None
        self.problem = ""
        """Why somebody who touches the controls does not drive; empty if nobody is refused."""

    @property
    def driver(self) -> str:
        """The name of the source that drives, or an empty text."""
        return "" if self._driver is None else self._driver.name

    def wish(self, now_s: float) -> Vector | None:
        """Return the action (A,) that the driver wants, or None if the robot is to stand still."""
        wishes = [(source, source.wish(now_s)) for source in self._sources]
        touched = [(source, wish) for source, wish in wishes if wish is not None]
        alive = {
            source.name: wish.values
            for source, wish in touched
            if now_s - wish.stamp_s <= source.timeout_s
        }
        silent = [source for source, _ in touched if source.name not in alive]
        refused = [source.problem for source in self._sources if source.problem]
        self.problem = _silence(silent[0]) if silent else next(iter(refused), "")
        if self._driver is not None and self._driver.name not in alive:
            self._driver = None
            return None
        if self._driver is None and len(alive) == 1:
            self._driver = next(source for source in self._sources if source.name in alive)
        if len(alive) > 1:
            self.problem = self._refusal(list(alive))
        return None if self._driver is None else alive[self._driver.name]

    @property
    def unheard(self) -> str:
        """What the controls name and was never heard, or an empty text."""
        return "; ".join(source.unheard for source in self._sources if source.unheard)

    def give_back(self) -> bool:
        """Return whether a person has asked, since the last call, that the policy drives again."""
        asked = [source.gives_back() for source in self._sources]
        return any(asked)

    def close(self) -> None:
        """Let go of all devices."""
        for source in self._sources:
            source.close()

    def _refusal(self, names: list[str]) -> str:
        if self._driver is None:
            return f"{' and '.join(names)} want to drive at once; let go of one of them"
        others = ", ".join(name for name in names if name != self.driver)
        return f"{others} is refused while {self.driver} drives; let go of one of them"


def _silence(source: Source) -> str:
    return f"{source.name} has been silent for more than {source.timeout_s:g} s; check that it still sends"


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


# What the nodes share by which a person drives: a `TeleopSession` with parameters and diagnostics.

END_WITHIN_S = 1.8
"""The longest time from a signal to the end of the process, in seconds."""


class DrivingNode(Node):
    """A node whose session begins with `drive`, and ends with `close`."""

    session: TeleopSession | None = None

    def __init__(self, name: str, parameters: type[DrivingParameters]) -> None:
        """parameters: those that the node has. Raises `UserError` for values that do not fit."""
        super().__init__(name)
        self._kind = parameters  # not _parameters, which rclpy has itself
        declare_parameters(self, parameters, self._on_parameters)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        warn_of_duplicates(self)

    def drive(
        self,
        cockpit: Cockpit,
        parameters: DrivingParameters,
        make_sources: Callable[[Cockpit], Sequence[Source]],
    ) -> TeleopSession:
        """Begin the session, and tell its state once a second and when it changes."""
        self.session = TeleopSession(
            self, cockpit, parameters, make_sources, self._publish_diagnostics
        )
        # On the steady clock, since simulated time may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, self._publish_diagnostics, clock=steady)
        return self.session

    def close(self) -> None:
        """Stop the robot, and wait until it has received that."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _on_parameters(self) -> None:
        if self.session is not None:
            self.session.take_limits(read_parameters(self, self._kind).limits)

    def _publish_diagnostics(self) -> None:
        if self.session is None:
            return
        status = self.session.diagnosis(f"{self.get_fully_qualified_name()}: teleop")
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)
