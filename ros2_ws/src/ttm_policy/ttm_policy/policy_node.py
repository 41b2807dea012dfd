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
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from ttm.policy.errors import UserError
from ttm_policy.bond import Bond, form_bond
from ttm_policy.diagnostics import DiagnosticsTopic, plain_status
from ttm_policy.inference import Instructions, Worker, load_policy
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import StopSignals, end_process, warn_of_duplicates
from ttm_policy.session import PolicySession

SUCCESS = TransitionCallbackReturn.SUCCESS
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
        self._problem, self._level = "not configured", DiagnosticStatus.WARN
        self._worker: Worker | None = None
        self._instructions: Instructions | None = None
        self._session: PolicySession | None = None
        self._bond: Bond | None = None
        self._closing = False
        self._diagnostics = DiagnosticsTopic(self)
        # On the steady clock, since simulated time may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(DIAGNOSTICS_PERIOD_S, self._publish_diagnostics, clock=steady)
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
            return TransitionCallbackReturn.FAILURE
        except Exception:  # rclpy would drop the traceback
            self._fail("configure failed; see the log")
            self.get_logger().error(traceback.format_exc())
            return TransitionCallbackReturn.ERROR
        return SUCCESS

    def _configure(self, parameters: PolicyParameters) -> None:
        """Load the policy in the thread of the network, while diagnostics go on."""
        self._problem, self._level = "configuring: loading the policy", DiagnosticStatus.WARN
        self.get_logger().info("the policy loads, which takes seconds")
        self._worker = Worker(self, NETWORK_THREAD)
        self._instructions = Instructions(self.get_logger().warning)
        load = partial(load_policy, parameters, self._instructions)
        loading = self._worker.submit(load, then=lambda _: None)
        published_s = -math.inf
        while not wait([loading], timeout=0.05).done:
            if self._interrupted():
                raise UserError("a signal came while the policy was loading")
            if time.monotonic() - published_s > DIAGNOSTICS_PERIOD_S:
                published_s = time.monotonic()
                self._publish_diagnostics()
        self._session = PolicySession(
            self,
            loading.result(),
            parameters,
            worker=self._worker,
            diagnostics=self._diagnostics,
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
        """Stop the robot if it was moving, and drop the policy: in any state, and after an error."""
        self._disconnect()
        return SUCCESS

    on_error = on_shutdown

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

    def _publish_diagnostics(self) -> None:
        """Publish the state. A session does so as well when its state changes."""
        if self._session is not None:
            self._diagnostics.publish(self._session.status())
        else:
            status = plain_status(self._diagnostics.name, self._level, self._problem)
            self._diagnostics.publish(status)

    def start(self) -> bool:
        """Configure and activate the node, and return whether both succeeded.

        A node that was deactivated before it crashed is only configured.
        """
        if self.trigger_configure() != SUCCESS or self._interrupted():
            return False
        assert self._session is not None
        if self._session.recovery.was_deactivated:
            self.get_logger().warning("not activated, because it was inactive when it crashed")
            return True
        return bool(self.trigger_activate() == SUCCESS)

    def close(self, *, in_order: bool = False) -> None:
        """Stop the robot before the process ends, and wait until the command has arrived.

        in_order: whether no other process shall go on with the memory.
        """
        self._closing = True
        if self._session is not None:
            if self._session.active:
                self.trigger_deactivate()
            self._session.flush()
        self._end_worker()
        if self._session is not None:
            if in_order:
                self._session.recovery.end()
            self._session.close()
            self._session = None


def _run(signals: StopSignals) -> int:
    try:
        node = PolicyNode(lambda: signals.requested)
    except UserError as error:
        print(f"policy_node: error: {error}", file=sys.stderr, flush=True)
        return 2
    in_order = False
    try:
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        if node.get_parameter("autostart").value and not node.start():
            return 0 if signals.requested else 2
        while not signals.requested:
            executor.spin_once(timeout_sec=0.1)
        in_order = True
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        node.close(in_order=in_order)
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
