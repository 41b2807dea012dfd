"""A person drives: asks the sources, and sends what they want, or stops the robot."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from ttm.policy.errors import ObservationError
from ttm_policy.inputs import PERIOD_S
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import DrivingParameters
from ttm_policy.programs import create_steady_timer, warn_of_duplicates
from ttm_policy.teleop.outputs import Output, PolicyOutput, RobotOutput
from ttm_policy.teleop.source import Source, TeleopContext, Vector


class Arbiter:
    """Lets one of several sources drive at a time. It uses no ROS, so that tests can set the time.

    Whoever touches the controls first drives until they let go of them. Whoever touches others meanwhile
    is refused, and of two who begin together both are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self.driver = ""
        """The name of the source that drives, or an empty text."""
        self.problem = ""
        """Why somebody who touches the controls does not drive; empty if nobody is refused."""

    def wish(self, now_s: float) -> Vector | None:
        """Return the action (A,) that the driver wants, or None if the robot is to stand still."""
        wishes = [(source, source.wish(now_s)) for source in self.sources]
        touched = [(source, wish) for source, wish in wishes if wish is not None]
        alive = {s.name: wish.values for s, wish in touched if now_s - wish.stamp_s <= s.timeout_s}
        problems = [
            f"{s.name} has been silent for more than {s.timeout_s:g} s; check that it still sends"
            for s, _ in touched
            if s.name not in alive
        ]
        problems += [source.problem for source in self.sources if source.problem]
        self.problem = problems[0] if problems else ""
        if self.driver and self.driver not in alive:
            self.driver = ""
            return None
        if len(alive) > 1:
            self.problem = self._refusal(list(alive))
        elif not self.driver:
            self.driver = next(iter(alive), "")
        return alive.get(self.driver)

    def _refusal(self, names: list[str]) -> str:
        if not self.driver:
            return f"{' and '.join(names)} want to drive at once; let go of one of them"
        others = ", ".join(name for name in names if name != self.driver)
        return f"{others} is refused while {self.driver} drives; let go of one of them"

    def give_back(self) -> bool:
        """Return whether a person has asked, since the last call, that the policy drives again."""
        asked = [source.gives_back() for source in self.sources]
        return any(asked)


UNHEARD_AFTER_S = 3.0
"""What was never heard is reported so long after the start; a publisher may start with the session."""


class TeleopSession:
    """Connects sources to the robot. It sends nothing before somebody touches the controls.

    One of the sources may drive at a time. The state is published on `/diagnostics` once a second, and
    when it changes.
    """

    def __init__(
        self,
        node: Node,
        context: TeleopContext,
        parameters: DrivingParameters,
        sources: Sequence[Source],
    ) -> None:
        self._node, self._arbiter = node, Arbiter(sources)
        self._output: Output = (
            PolicyOutput(node, context, parameters.policy)
            if parameters.policy
            else RobotOutput(node, context, parameters, self.step)
        )
        self.problem = ""
        """Why the robot does not do what the person wants, or an empty text."""
        self.unheard = ""
        """What the controls name and was not heard since the start, or an empty text."""
        self._begun_s = time.monotonic()
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._timers = [
            create_steady_timer(node, PERIOD_S, self.step),
            create_steady_timer(node, 1.0, self._publish_diagnosis),
        ]

    @property
    def driver(self) -> str:
        """The name of the source that moves the robot now, or an empty text."""
        return self._arbiter.driver if self._output.moves else ""

    def step(self) -> None:
        """Send what the driver wants now. This is called at every `PERIOD_S`, and may be between."""
        before = self.driver, _without_numbers(self.problem), self.unheard
        now_s = time.monotonic()
        wish = self._arbiter.wish(now_s)
        refusal = self._send(wish) if wish is not None else ""
        if wish is None or refusal:
            self._output.rest()
        if self._arbiter.give_back():
            self._output.give_back()
        self.problem = refusal or self._arbiter.problem or self._output.problem
        if now_s - self._begun_s >= UNHEARD_AFTER_S:
            self.unheard = "; ".join(s.unheard for s in self._arbiter.sources if s.unheard)
        problem = _without_numbers(self.problem)
        if (self.driver, problem, self.unheard) != before:
            if problem not in ("", before[1]):
                self._node.get_logger().warning(self.problem)
            if self.unheard not in ("", before[2]):
                self._node.get_logger().warning(self.unheard)
            self._publish_diagnosis()

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
        """Stop the robot, wait until it has received that, and let go of devices and topics."""
        for timer in self._timers:
            self._node.destroy_timer(timer)
        for source in self._arbiter.sources:
            source.close()
        self._output.rest()
        self._output.close()
        self._node.destroy_publisher(self._diagnostics)

    def diagnosis(self) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        is_well = not self.problem and not self.unheard
        level = DiagnosticStatus.OK if is_well else DiagnosticStatus.WARN
        text = self.problem or (f"{self.driver} drives" if self.driver else "nobody drives")
        text = f"{text}; {self.unheard}" if self.unheard else text
        name = f"{self._node.get_fully_qualified_name()}: teleop"
        return DiagnosticStatus(name=name, hardware_id="ttm_policy", level=level, message=text)

    def _publish_diagnosis(self) -> None:
        message = DiagnosticArray(status=[self.diagnosis()])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _without_numbers(problem: str) -> str:
    """Return a problem without the ages in it, which change from step to step."""
    return re.sub(r"[\d.]+", "", problem)


END_WITHIN_S = 1.8
"""The longest time from a signal to the end of the process of a `DrivingNode`, in seconds."""


class DrivingNode(Node):
    """A node by which a person drives. Those derived from it begin `session`, and `close` ends it."""

    session: TeleopSession | None = None

    def __init__(self, name: str, parameters: type[DrivingParameters]) -> None:
        """parameters: those that the node has. Raises `UserError` for values that do not fit."""
        super().__init__(name)
        self._kind = parameters  # not _parameters, which rclpy has itself
        declare_parameters(self, parameters, self._on_parameters)
        warn_of_duplicates(self)

    def close(self) -> None:
        """Stop the robot, and wait until it has received that."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _on_parameters(self) -> None:
        if self.session is not None:
            self.session.take_limits(read_parameters(self, self._kind).limits)
