"""What the nodes share by which a person drives: a `TeleopSession` with parameters and diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ttm_policy.declare import declare_parameters, read_parameters
from ttm_policy.parameter_sets.driving_parameters import DrivingParameters
from ttm_policy.supervision.namesakes import tell_namesakes
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.source import Source
from ttm_policy.teleop.teleop_session import TeleopSession

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
        tell_namesakes(self)

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
