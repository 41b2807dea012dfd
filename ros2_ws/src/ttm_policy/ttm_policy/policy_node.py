"""The policy as a managed (life-cycle) ROS 2 node: observations in, ticks, commands out.

configure loads the checkpoint, activate starts the ticks, deactivate stops the policy and then the robot. The
memory is kept on deactivation: only a different instruction or `~/reset_memory` empties it.

    ros2 run ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors
    python -m ttm_policy policy_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any, NoReturn

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn

from ttm.policy.errors import UserError
from ttm_policy.inference import Instructions, Worker, load_policy
from ttm_policy.lifecycle import DIAGNOSTICS_PERIOD_S, SUCCESS, ManagedNode
from ttm_policy.node_parameters import read_parameters
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import END_WITHIN_S, StopSignals, run_with_ros, spin
from ttm_policy.session import PolicySession


class PolicyNode(ManagedNode):
    """The life cycle of a `PolicySession`, and its diagnostics."""

    def __init__(self, interrupted: Callable[[], bool] = lambda: False, **options: Any) -> None:
        """interrupted: whether configuring is to be given up. options: see `ManagedNode`."""
        self._interrupted, self._closing = interrupted, False
        self._level = DiagnosticStatus.WARN
        self._worker: Worker | None = None
        self._instructions: Instructions | None = None
        self._session: PolicySession | None = None
        super().__init__("policy_node", PolicyParameters, "policy", self._on_parameters, **options)

    def _on_parameters(self) -> None:
        if self._session is not None:
            self._session.take_parameters(read_parameters(self, PolicyParameters))

    def _configure(self) -> None:
        """Load the policy in the thread of the network, while diagnostics go on."""
        parameters = read_parameters(self, PolicyParameters)
        self._problem, self._level = "configuring: loading the policy", DiagnosticStatus.WARN
        self.get_logger().info("the policy loads, which takes seconds")
        self._worker = Worker(self, "network")
        self._instructions = Instructions(self.get_logger().warning)
        load = partial(load_policy, parameters, self._instructions)
        loading = self._worker.submit(load, then=lambda _: None)
        published_s = -math.inf
        while not wait([loading], timeout=0.05).done:
            if self._interrupted():
                raise UserError("a signal came while the policy was loading")
            if time.monotonic() - published_s > DIAGNOSTICS_PERIOD_S:
                published_s = time.monotonic()
                self.publish_diagnostics()
        self._session = PolicySession(self, loading.result(), parameters, self._worker)
        # Later collections skip these objects: to look at them would hold all threads for 0.2 s.
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

    def _activate(self) -> None:
        """Start the ticks with the memory as it is."""
        assert self._session is not None
        self._session.recovery.mark(active=True)
        self._session.start()
        self.get_logger().info("active")

    def _deactivate(self) -> None:
        """Stop the policy, and then the robot."""
        if self._session is not None and self._session.active:
            self._session.stop()
            if not self._closing:
                self._session.recovery.mark(active=False)
            self.get_logger().info("the policy is stopped, and then the robot")

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy with its memory."""
        if self._session is not None:
            self._session.recovery.drop()
        return super().on_cleanup(state)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.flush()
            self._session.close()
            self._session = None
        self._level = DiagnosticStatus.WARN
        self._end_worker()

    def _status(self) -> DiagnosticStatus:
        if self._session is not None:
            return self._session.status()
        return DiagnosticStatus(level=self._level, message=self._problem, hardware_id="ttm_policy")

    def start(self) -> bool:
        """Configure the node, activate it unless it crashed inactive, and return whether that succeeded."""
        if self.trigger_configure() != SUCCESS or self._interrupted():
            return False
        assert self._session is not None
        if self._session.recovery.was_deactivated:
            self.get_logger().warning("not activated, because it was inactive when it crashed")
            return True
        return bool(self.trigger_activate() == SUCCESS)

    def close(self, *, in_order: bool = False) -> None:
        """Stop the robot before the process ends. in_order: whether none shall go on with the memory."""
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


def _run() -> int:
    signals, in_order = StopSignals(END_WITHIN_S), False
    node = PolicyNode(lambda: signals.requested)
    try:
        if node.get_parameter("autostart").value and not node.start():
            return 0 if signals.requested else 2
        spin(node, lambda: signals.requested)
        in_order = True
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        node.close(in_order=in_order)
        node.destroy_node()


def main() -> NoReturn:
    """Run the node until a signal, and stop the robot in every case.

    The exit code is 0 after a signal, 2 for bad parameters, 1 for a failure in a tick.
    """
    run_with_ros("policy_node", _run)
