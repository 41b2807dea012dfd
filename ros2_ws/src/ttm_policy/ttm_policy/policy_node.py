"""The policy as a managed (life-cycle) ROS 2 node: observations in, ticks, commands out.

configure loads the checkpoint and warms it up, activate starts the ticks, deactivate stops the
policy and then the robot. The memory is kept on deactivation: only a different instruction or
`~/reset_memory` empties it.

    ros2 run ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors
    python -m ttm_policy policy_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any, NoReturn

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from ttm.policy.errors import UserError
from ttm_policy.bond import Bond, form_bond
from ttm_policy.diagnostics import plain_status
from ttm_policy.inference import Instructions, Worker, load_policy
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import StopSignals, end_process, warn_of_duplicates
from ttm_policy.session import PolicySession

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)

DIAGNOSTICS_PERIOD_S = 1.0
"""Wall time between two messages on `/diagnostics`, whatever the node is doing."""

END_WITHIN_S = 1.8
"""The longest time from a signal to the end of the process, in seconds."""

NETWORK_THREAD = "network"


class PolicyNode(LifecycleNode):
    """The life cycle of a `PolicySession`, and its diagnostics."""

    def __init__(self, interrupted: Callable[[], bool] = lambda: False, **options: Any) -> None:
        """Declare the parameters. interrupted: whether configuring is to be given up.

        options: those of `rclpy.node.Node`, such as `namespace`, for a process with several nodes.
        """
        super().__init__("policy_node", **options)
        declare_parameters(self, PolicyParameters, self._on_parameters)
        self._interrupted = interrupted
        self._problem = "not configured"
        self._level = DiagnosticStatus.WARN
        self._worker: Worker | None = None
        self._instructions: Instructions | None = None
        self._session: PolicySession | None = None
        self._bond: Bond | None = None
        self._closing = self._in_order = False
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # On the steady clock, since simulated time may stand still.
        self.create_timer(
            DIAGNOSTICS_PERIOD_S,
            self.publish_diagnostics,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        warn_of_duplicates(self)

    def _on_parameters(self) -> None:
        if self._session is not None:
            self._session.take_parameters(read_parameters(self, PolicyParameters))

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, check and warm up the policy, and connect to all topics; command nothing."""
        try:
            self._configure(read_parameters(self, PolicyParameters))
        except UserError as error:
            self._fail(" ".join(str(error).split()))
            self.get_logger().error(self._problem)
            return FAILURE
        except Exception:  # rclpy would drop the traceback
            self._fail("configure failed; see the log")
            self.get_logger().error(traceback.format_exc())
            return ERROR
        return SUCCESS

    def _configure(self, parameters: PolicyParameters) -> None:
        """Load the policy in the thread of the network, while diagnostics go on."""
        self._problem, self._level = "configuring: loading the policy", DiagnosticStatus.WARN
        self.get_logger().info("the policy loads, which takes seconds")
        self._worker, self._instructions = (
            Worker(self, NETWORK_THREAD),
            Instructions(self.get_logger().warning),
        )
        loading = self._worker.submit(
            partial(load_policy, parameters, self._instructions), then=lambda _: None
        )
        published_s = -math.inf
        while not wait([loading], timeout=0.05).done:
            if self._interrupted():
                raise UserError("a signal came while the policy was loading")
            if time.monotonic() - published_s > DIAGNOSTICS_PERIOD_S:
                published_s = time.monotonic()
                self.publish_diagnostics()
        self._session = PolicySession(
            self, loading.result(), parameters, self._worker, self.publish_diagnostics
        )
        # From now on a collection passes over all objects of before: to look at them takes 0.2 s, in which no
        # other thread runs, not even that of the emergency stop.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _fail(self, problem: str) -> None:
        self._problem, self._level = problem, DiagnosticStatus.ERROR
        self._end_worker()

    def _end_worker(self) -> None:
        if self._instructions is not None:
            self._instructions.close()
        if self._worker is not None:
            self._worker.close()
        self._worker = self._instructions = None

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the ticks with the memory as it is."""
        assert self._session is not None
        self._session.recovery.mark(active=True)
        self._session.start()
        self._bond = form_bond(self)
        self.get_logger().info("active")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the policy, and then the robot."""
        self._stop()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy with its memory."""
        if self._session is not None:
            self._session.recovery.drop()
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
            if not self._closing:
                self._session.recovery.mark(active=False)
            self.get_logger().info("the policy is stopped, and then the robot")
        if self._bond is not None:
            self._bond.end()
            self._bond = None

    def _disconnect(self) -> None:
        self._stop()
        if self._session is not None:
            self._session.flush()
            self._session.close()
            self._session = None
        self._problem, self._level = "not configured", DiagnosticStatus.WARN
        self._end_worker()

    def publish_diagnostics(self) -> None:
        """Publish the state. This is called every second, and when the state changes."""
        name = f"{self.get_fully_qualified_name()}: policy"
        status = (
            self._session.status(name)
            if self._session is not None
            else plain_status(name, self._level, self._problem)
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    @property
    def was_deactivated(self) -> bool:
        """Whether this process stands in for one that crashed after it was deactivated."""
        return self._session is not None and self._session.recovery.was_deactivated

    def end_episode(self) -> None:
        """Let no other process go on with the memory, since this one is about to end in order."""
        self._in_order = True

    def close(self) -> None:
        """Stop the robot before the process ends, and wait until the command has arrived."""
        self._closing = True
        if self._session is not None:
            if self._session.active:
                self.trigger_deactivate()
            self._session.flush()
        self._end_worker()
        if self._session is not None:
            if self._in_order:
                self._session.recovery.end()
            self._session.close()
            self._session = None


def _start(node: PolicyNode, signals: StopSignals) -> bool:
    """Configure and activate the node, and return whether both succeeded.

    A node that was deactivated before it crashed is only configured.
    """
    if node.trigger_configure() != SUCCESS or signals.requested:
        return False
    if node.was_deactivated:
        node.get_logger().warning("not activated, because it was inactive when it crashed")
        return True
    return bool(node.trigger_activate() == SUCCESS)


def _spin(node: PolicyNode, signals: StopSignals) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    if node.get_parameter("autostart").value and not _start(node, signals):
        return 0 if signals.requested else 2
    while not signals.requested:
        executor.spin_once(timeout_sec=0.1)
    node.end_episode()
    return 0


def _run(signals: StopSignals) -> int:
    try:
        node = PolicyNode(lambda: signals.requested)
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


def main() -> NoReturn:
    """Run the node until a signal, and stop the robot in every case. Then end the process.

    The exit code is 0 after a signal, 2 for bad parameters, 1 for a failure in a tick.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        code = _run(StopSignals(END_WITHIN_S))
    finally:
        rclpy.try_shutdown()
    end_process(code)


if __name__ == "__main__":
    main()
