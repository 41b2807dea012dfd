"""Records episodes from a robot's topics as a managed (life-cycle) ROS 2 node.

It takes the contract of `policy_node`, so that what is recorded is what a policy will see. configure
reads contract and spec, activate allows episodes to begin, deactivate discards an episode in hand.

    ros2 run ttm_policy recorder_node --ros-args -p contract:=my_robot.yaml -p rate_hz:=10.0
    python -m ttm_policy recorder_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from ttm.policy.errors import UserError
from ttm_policy.bond import Bond, form_bond
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import RecorderParameters
from ttm_policy.programs import StopSignals, run_with_ros, warn_of_duplicates
from ttm_policy.recording.recorder import HELP, Keys, Recorder
from ttm_policy.teleop.devices import raw_terminal, read_key

SUCCESS = TransitionCallbackReturn.SUCCESS


class RecorderNode(LifecycleNode):
    """The life cycle of a `Recorder`, and its diagnostics."""

    def __init__(self) -> None:
        super().__init__("recorder_node")
        declare_parameters(self, RecorderParameters)
        self._problem = "not configured"
        self.recorder: Recorder | None = None
        self._bond: Bond | None = None
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # On the steady clock, since simulated time may stand still.
        self.create_timer(
            1.0, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        warn_of_duplicates(self)

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read contract and spec, and subscribe to all topics."""
        try:
            self.recorder = Recorder(self, read_parameters(self, RecorderParameters))
        except UserError as error:
            self._problem = " ".join(str(error).split())
            self.get_logger().error(self._problem)
            return TransitionCallbackReturn.FAILURE
        except Exception:  # rclpy would drop the traceback
            self._problem = "configure failed; see the log"
            self.get_logger().error(traceback.format_exc())
            return TransitionCallbackReturn.ERROR
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Allow episodes to begin."""
        assert self.recorder is not None
        self.recorder.active = True
        self._bond = form_bond(self)
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Discard an episode in hand; save one that was stopped."""
        assert self.recorder is not None
        self.recorder.interrupt()
        self._end_bond()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the topics. A shutdown, in any state, and a failed transition do the same."""
        self.close()
        return SUCCESS

    on_shutdown = on_error = on_cleanup

    def close(self) -> None:
        """Save an episode that was stopped, discard one in hand, and drop the topics."""
        recorder, self.recorder, self._problem = self.recorder, None, "not configured"
        if recorder is not None:
            recorder.close()
        self._end_bond()

    def _end_bond(self) -> None:
        if self._bond is not None:
            self._bond.end()
            self._bond = None

    def _publish_diagnostics(self) -> None:
        name = f"{self.get_fully_qualified_name()}: recorder"
        status = DiagnosticStatus(name=name, level=DiagnosticStatus.WARN, message=self._problem)
        if self.recorder is not None:
            status = self.recorder.diagnosis(name)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _spin(node: RecorderNode, signals: StopSignals) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    transitions = (node.trigger_configure, node.trigger_activate)
    if node.get_parameter("autostart").value and any(each() != SUCCESS for each in transitions):
        return 2
    keys, takes_keys = Keys(), node.get_parameter("keys").value
    with ExitStack() as stack:
        if takes_keys:
            stack.enter_context(raw_terminal())
            print(HELP, flush=True)
        while not signals.requested and not keys.quit:
            executor.spin_once(timeout_sec=0.1)
            while takes_keys and (key := read_key()) is not None:
                keys.handle(key, node.recorder)
    return 0


def _run() -> int:
    signals = StopSignals()
    node = RecorderNode()
    try:
        return _spin(node, signals)
    finally:
        node.close()
        node.destroy_node()


def main() -> int:
    """Run the node until a signal.

    Returns the exit code: 0 after a signal or the key `q`, 2 for bad parameters, 1 for a failure.
    """
    return run_with_ros("recorder_node", _run)


if __name__ == "__main__":
    sys.exit(main())
