"""A person drives: asks the device, and sends what the person wants, or stops the robot."""

from __future__ import annotations

import re
import time

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from ttm.policy.errors import ObservationError
from ttm.sim.shipped import SHIPPED
from ttm_policy.contract import load_contract
from ttm_policy.inputs import PERIOD_S
from ttm_policy.messages import check_fields
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import DrivingParameters
from ttm_policy.programs import steady_timer, warn_of_duplicates
from ttm_policy.recording.values import read_given_spec
from ttm_policy.teleop.outputs import Output, PolicyOutput, RobotOutput
from ttm_policy.teleop.source import Source, TeleopContext, Vector

UNHEARD_AFTER_S = 3.0
"""What was never heard is reported so long after the start; a publisher may start with the session."""


def load_context(parameters: DrivingParameters) -> TeleopContext:
    """Read contract and spec. Raises `UserError` if they do not fit together."""
    contract = load_contract(parameters.contract)
    check_fields(contract)
    like = parameters.spec or ("" if parameters.contract else SHIPPED)
    given = read_given_spec(like, contract, parameters.rate_hz)
    return TeleopContext(contract, given.complete_without_images(), parameters.limits)


class TeleopSession:
    """Connects a device to the robot. It sends nothing before somebody touches the controls.

    The state is published on `/diagnostics` once a second, and when it changes.
    """

    def __init__(
        self, node: Node, context: TeleopContext, parameters: DrivingParameters, source: Source
    ) -> None:
        self._node, self._source = node, source
        self.output: Output = (
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
            steady_timer(node, PERIOD_S, self.step),
            steady_timer(node, 1.0, self._publish_diagnosis),
        ]

    @property
    def driver(self) -> str:
        """The name of the source that moves the robot now, or an empty text."""
        return self._source.name if self.output.moves else ""

    def step(self) -> None:
        """Send what the driver wants now. This is called at every `PERIOD_S`, and may be between."""
        before = self.driver, _without_numbers(self.problem), self.unheard
        now_s = time.monotonic()
        source, wish = self._source, self._source.wish(now_s)
        refusal = ""
        if wish is not None and now_s - wish.stamp_s > source.timeout_s:
            refusal = (
                f"{source.name} has been silent for more than {source.timeout_s:g} s; check that it "
                "still sends"
            )
        elif wish is not None:
            refusal = self._send(wish.values)
        if wish is None or refusal:
            self.output.rest()
        if source.gives_back():
            self.output.give_back()
        self.problem = refusal or source.problem or self.output.problem
        if now_s - self._begun_s >= UNHEARD_AFTER_S:
            self.unheard = source.unheard
        problem = _without_numbers(self.problem)
        if (self.driver, problem, self.unheard) != before:
            if problem not in ("", before[1]):
                self._node.get_logger().warning(self.problem)
            if self.unheard not in ("", before[2]):
                self._node.get_logger().warning(self.unheard)
            self._publish_diagnosis()

    def _send(self, wish: Vector) -> str:
        """Send what is wanted, and return an empty text, or why it cannot be."""
        if problem := self.output.problem:
            return problem
        try:
            self.output.send(wish)
        except ObservationError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Stop the robot, and wait until it has received that. The topics end with the node."""
        for timer in self._timers:
            self._node.destroy_timer(timer)
        self.output.rest()
        self.output.close()

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
            self.session.output.take_limits(read_parameters(self, self._kind).limits)
