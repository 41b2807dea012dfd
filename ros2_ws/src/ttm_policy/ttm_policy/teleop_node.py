"""A person drives the robot by keys or a gamepad, within the limits of a policy.

The node has no life cycle of its own: it sends nothing before somebody touches the controls, and zero as
soon as nobody does. It takes the contract of `policy_node` and `recorder_node`.

    ros2 run ttm_policy teleop_node --ros-args -p contract:=my_robot.yaml -p rate_hz:=10.0
    python -m ttm_policy.teleop_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack
from dataclasses import asdict

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ttm.policy.errors import UserError
from ttm_policy.declare import declare_parameters, read_parameters
from ttm_policy.parameters import TeleopParameters
from ttm_policy.recording.keys import HELP, Keys
from ttm_policy.stop_signals import StopSignals
from ttm_policy.teleop.cockpit import load_cockpit
from ttm_policy.teleop.devices import make_source
from ttm_policy.teleop.recorder_calls import RecorderCalls
from ttm_policy.teleop.teleop_session import TeleopSession
from ttm_policy.terminal import raw_terminal

END_WITHIN_S = 1.8
"""The longest time from a signal to the end of the process, in seconds."""


class TeleopNode(Node):
    """A `TeleopSession` with its parameters and diagnostics."""

    def __init__(self) -> None:
        """Connect everything. Raises `UserError` for parameters and files that do not fit."""
        super().__init__("teleop_node")
        declare_parameters(self, TeleopParameters, self._on_parameters)
        parameters = read_parameters(self, TeleopParameters)
        self.keys = Keys()
        self.session: TeleopSession | None = None
        self._recorder = RecorderCalls(self, parameters.recorder) if parameters.recorder else None
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.session = TeleopSession(
            self,
            load_cockpit(parameters),
            parameters,
            lambda cockpit: [make_source(self, cockpit, parameters, self._on_key)],
            self._publish_diagnostics,
        )
        # On the steady clock, since simulated time may stand still.
        self.create_timer(
            1.0, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def _on_parameters(self) -> None:
        if self.session is not None:
            self.session.take_limits(asdict(read_parameters(self, TeleopParameters)))

    def close(self) -> None:
        """Stop the robot, and wait until it has received that."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _on_key(self, key: str) -> None:
        if key == "q" or self._recorder is not None:
            self.keys.handle(key, self._recorder)

    def _publish_diagnostics(self) -> None:
        if self.session is None:
            return
        status = self.session.diagnosis(f"{self.get_fully_qualified_name()}: teleop")
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _spin(node: TeleopNode, signals: StopSignals) -> None:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    with ExitStack() as stack:
        if node.get_parameter("source").value == "keyboard":
            stack.enter_context(raw_terminal())
            print(HELP if node.get_parameter("recorder").value else "q: quit", flush=True)
        while not signals.requested and not node.keys.quit:
            executor.spin_once(timeout_sec=0.1)


def _run() -> int:
    signals = StopSignals(END_WITHIN_S)
    try:
        node = TeleopNode()
        try:
            _spin(node, signals)
        finally:
            node.close()
            node.destroy_node()
    except UserError as error:
        print(f"teleop_node: error: {error}", file=sys.stderr, flush=True)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """Run the node until a signal or the key `q`, and stop the robot in every case.

    Returns the exit code: 0 after a signal or `q`, 2 for bad parameters, 1 for a failure.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        return _run()
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
