"""The policy as a managed (life-cycle) ROS 2 node: observations in, ticks, commands out.

configure loads the checkpoint and warms it up, activate starts the ticks, deactivate stops the
policy and then the robot. The memory is kept on deactivation: only a different instruction or
`~/reset_memory` empties it.

    ros2 run ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors
    python -m ttm_policy.policy_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import sys
import traceback

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from ttm.policy.errors import UserError
from ttm_policy.control.diagnostics import unconfigured_status
from ttm_policy.control.policy_session import PolicySession
from ttm_policy.declare import declare_parameters, read_parameters
from ttm_policy.parameters import PolicyParameters
from ttm_policy.stop_signals import StopSignals

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)


class PolicyNode(LifecycleNode):
    """The life cycle of a `PolicySession`, and its diagnostics."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        declare_parameters(self, PolicyParameters)
        self._problem = ""
        self._session: PolicySession | None = None
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # On the steady clock, since simulated time may stand still.
        self.create_timer(
            1.0, self.publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, check and warm up the policy, and connect to all topics; command nothing."""
        try:
            parameters = read_parameters(self, PolicyParameters)
            self._session = PolicySession(self, parameters, self.publish_diagnostics)
        except UserError as error:
            self._problem = " ".join(str(error).split())
            self.get_logger().error(self._problem)
            return FAILURE
        except Exception:  # rclpy would drop the traceback
            self._problem = "configure failed; see the log"
            self.get_logger().error(traceback.format_exc())
            return ERROR
        self._problem = ""
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the ticks with the memory as it is."""
        assert self._session is not None
        self._session.start()
        self.get_logger().info("active")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the policy, and then the robot."""
        self._stop()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy with its memory."""
        self._disconnect()
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the robot if it was moving, and drop the policy. This is called in any state."""
        self._disconnect()
        return SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After a failed transition, stop the robot and become unconfigured."""
        self._disconnect()
        return SUCCESS

    def _stop(self) -> None:
        if self._session is not None and self._session.active:
            self._session.stop()
            self.get_logger().info("the policy is stopped, and then the robot")

    def _disconnect(self) -> None:
        self._stop()
        if self._session is not None:
            self._session.close()
            self._session = None

    def publish_diagnostics(self) -> None:
        """Publish the state. This is called every second, and when the state changes."""
        name = f"{self.get_name()}: policy"
        status = (
            self._session.status(name)
            if self._session is not None
            else unconfigured_status(name, self._problem)
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def close(self) -> None:
        """Stop the robot before the process ends, and wait until the command has arrived."""
        if self._session is not None:
            if self._session.active:
                self.trigger_deactivate()
            self._session.flush()


def _start(node: PolicyNode) -> bool:
    """Configure and activate the node, and return whether both succeeded."""
    return all(
        transition() == SUCCESS for transition in (node.trigger_configure, node.trigger_activate)
    )


def _spin(node: PolicyNode, signals: StopSignals) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    if node.get_parameter("autostart").value and not _start(node):
        return 2
    while not signals.requested:
        executor.spin_once(timeout_sec=0.1)
    return 0


def _run(signals: StopSignals) -> int:
    try:
        node = PolicyNode()
    except UserError as error:
        print(f"policy_node: error: {error}", file=sys.stderr, flush=True)
        return 2
    try:
        return _spin(node, signals)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        node.close()
        node.destroy_node()


def main() -> int:
    """Run the node until a signal, and stop the robot in every case.

    Returns the exit code: 0 after a signal, 2 for bad parameters, 1 for a failure in a tick.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        return _run(StopSignals())
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
