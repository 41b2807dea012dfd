"""A configured policy with its topics, services and ticks."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.timer import Timer
from std_msgs.msg import Bool, String

from ttm.policy.errors import ObservationError
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.shipped import default_checkpoint
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields, ns_to_stamp
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.control.command_publishers import CommandPublishers
from ttm_policy.control.control_loop import STANDING_STILL, ControlLoop, LoopState
from ttm_policy.control.diagnostics import policy_status
from ttm_policy.control.inputs import Inputs
from ttm_policy.control.memory_interface import MemoryInterface
from ttm_policy.parameters import LIMITS, PolicyParameters
from ttm_policy.qos import LATCHED


class PolicySession:
    """Translates between topics and a `ControlLoop`. It commands nothing until `start`.

    `on_state_change` is called whenever the state of the loop has changed.
    """

    def __init__(
        self, node: Node, parameters: PolicyParameters, on_state_change: Callable[[], None]
    ):
        """Load the policy and connect all topics.

        Raises `UserError` if anything does not fit together.
        """
        self._node, self._parameters, self._on_state_change = node, parameters, on_state_change
        self.active = False
        self._timer: Timer | None = None
        self._tick_ms = 0.0
        runner, codec, limits = _load(parameters)
        self._loop = ControlLoop(
            runner, limits, max_age_s=parameters.max_age_s, stop_after_s=parameters.stop_after_s
        )
        self._memory = MemoryInterface(
            node, self._loop, parameters.snapshot_path, self._begin_episode
        )
        self._commands = CommandPublishers(node, codec, lockstep=parameters.lockstep)
        self._inputs = Inputs(
            node,
            codec.contract,
            runner.spec,
            lockstep=parameters.lockstep,
            on_message=self._on_input,
        )
        self._listeners = [
            node.create_subscription(String, "instruction", self._on_instruction, LATCHED),
            node.create_subscription(Bool, "e_stop", self._on_e_stop, 10),
        ]
        self._memory.publish()
        checkpoint = parameters.checkpoint or "the shipped policy"
        node.get_logger().info(
            f"ready: {checkpoint} for {runner.spec.robot} at {runner.spec.rate_hz} Hz"
        )

    def start(self) -> None:
        """Start the ticks: at the policy's rate, or in lockstep at each complete observation."""
        self.active = True
        self._loop.resume()
        if not self._parameters.lockstep:
            period_s = self._loop.runner.spec.control_dt_s
            self._timer = self._node.create_timer(period_s, self._on_timer)
        self._on_input()

    def stop(self) -> None:
        """End the ticks, and then stop the robot: the stop is the last command."""
        self.active = False
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        self._stop_robot()

    def _stop_robot(self) -> None:
        self._commands.stop()
        self._loop.stand_still()

    def flush(self) -> None:
        """Wait until the last commands have arrived."""
        self._commands.flush()

    def close(self) -> None:
        """Destroy all topics and services."""
        self._inputs.close()
        self._memory.close()
        self._commands.close()
        for listener in self._listeners:
            self._node.destroy_subscription(listener)

    def status(self, name: str) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        return policy_status(name, self._loop, active=self.active, tick_ms=self._tick_ms)

    def _on_timer(self) -> None:
        now = self._node.get_clock().now()
        self._tick(now.nanoseconds, now.to_msg())

    def _on_input(self) -> None:
        """In lockstep, run a tick on each complete observation once.

        The commands carry its stamp.
        """
        if not self.active or not self._parameters.lockstep:
            return
        stamp_ns = self._inputs.complete_stamp_ns()
        if stamp_ns is not None and stamp_ns > self._loop.last_stamp_ns:
            self._tick(stamp_ns, ns_to_stamp(stamp_ns))

    def _tick(self, now_ns: int, reply_stamp: Time) -> None:
        before, started_s = self._loop.state, time.perf_counter()
        tick = None
        try:
            tick = self._loop.step(self._inputs.observation(), now_ns * 1e-9)
        except ObservationError as error:
            self._loop.hold(error, now_ns * 1e-9)
        if tick is not None:
            self._commands.publish(tick, reply_stamp)
            self._memory.publish()
            self._tick_ms = (time.perf_counter() - started_s) * 1e3
        elif self._loop.state in STANDING_STILL:
            self._stop_robot()
        self._report_if_changed(before)

    def _on_instruction(self, message: String) -> None:
        text = message.data.strip()
        if not text or text == self._loop.runner.instruction:
            return
        if self.active:
            # The old instruction is void, and the language model may take seconds for the new one.
            self._stop_robot()
        self._loop.reset(text)
        self._memory.publish()
        self._node.get_logger().info(f"new instruction, memory reset: {text}")

    def _on_e_stop(self, message: Bool) -> None:
        before = self._loop.state
        self._loop.set_e_stop(message.data)
        self._report_if_changed(before)
        if message.data:
            self._stop_robot()
        else:
            self._on_input()

    def _begin_episode(self) -> None:
        """Accept the old stamps of a restarted simulator, but answer no observation twice."""
        answered = self._inputs.complete_stamp_ns() == self._loop.last_stamp_ns
        if answered or not self._parameters.lockstep:
            self._inputs.forget()
        self._loop.last_stamp_ns = 0

    def _report_if_changed(self, before: LoopState) -> None:
        if self._loop.state is not before:
            problem = f": {self._loop.problem}" if self._loop.problem else ""
            self._node.get_logger().info(f"{self._loop.state.value}{problem}")
            self._on_state_change()


def _load(parameters: PolicyParameters) -> tuple[PolicyRunner, CommandCodec, SafetyLimits]:
    """Load contract and checkpoint.

    Every mistake in them is found here and raised as `UserError`.
    """
    checkpoint = parameters.checkpoint or str(default_checkpoint())
    torch.set_num_threads(parameters.threads)
    contract = load_contract(parameters.contract)
    check_fields(contract)
    runner = PolicyRunner.from_checkpoint(
        checkpoint,
        device=parameters.device,
        engine=parameters.engine,
        precision=parameters.precision,
    )
    contract.check(runner.spec)
    limits = SafetyLimits(
        contract, runner.spec, {name: getattr(parameters, name) for name in LIMITS}
    )
    if parameters.instruction:
        runner.reset(parameters.instruction)
    codec = CommandCodec(contract, runner.spec, cmd_vel_stamped=parameters.cmd_vel_stamped)
    return runner, codec, limits
