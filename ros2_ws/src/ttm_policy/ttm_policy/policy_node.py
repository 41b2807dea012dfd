"""The policy as a managed ROS 2 node: topics in, one tick, commands out.

configure loads the checkpoint and warms it up; activate starts the ticks; deactivate stops the policy and
then stops the robot. The memory lives in the runner and outlasts deactivation; only a new instruction or
`~/reset_memory` empties it.

    ros2 run ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors -p instruction:="pick up the red can"
    python -m ttm_policy.policy_node --ros-args …                    (the same without a ROS install)
"""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any

import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.timer import Timer
from std_msgs.msg import Bool, Float32MultiArray, MultiArrayDimension, String

from ttm.policy.errors import ObservationError, UserError
from ttm.policy.runner import PolicyRunner
from ttm_policy.commands import CommandCodec
from ttm_policy.contract import LIMITS, load_contract
from ttm_policy.control_loop import ControlLoop, StampedObservation, State
from ttm_policy.conversions import check_fields, ns_to_stamp
from ttm_policy.inputs import Inputs
from ttm_policy.limits import SafetyLimits
from ttm_policy.memory_interface import MemoryInterface
from ttm_policy.settings import declare_settings, read_settings
from ttm_policy.stop_signals import StopSignals

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_STANDING_STILL = (State.HOLDING, State.STOPPED, State.E_STOP)
_LEVELS = {State.RUNNING: DiagnosticStatus.OK, State.STOPPED: DiagnosticStatus.ERROR, State.E_STOP: DiagnosticStatus.ERROR}


class PolicyNode(LifecycleNode):
    """Translates between topics and a `ControlLoop`; `problem` is the last error that kept it from starting."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        declare_settings(self)
        self.problem = ""
        self.active = False
        self._loop: ControlLoop | None = None
        self._timer: Timer | None = None
        self._answered_ns = 0
        self._tick_ms = 0.0
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Wall time on purpose: it must go on when simulated time stands still.
        self.create_timer(1.0, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME))

    # Life cycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, check and warm up; connect to all topics, but command nothing."""
        try:
            self._configure()
        except UserError as error:
            self.problem = str(error)
            self.get_logger().error(self.problem)
            return TransitionCallbackReturn.FAILURE
        return super().on_configure(state)

    def _configure(self) -> None:
        self.problem = ""
        self._settings = settings = read_settings(self)
        if not settings.checkpoint:
            raise UserError("no checkpoint; set the parameter checkpoint to a .safetensors file")
        _set_threads(settings.threads)
        contract = load_contract(settings.contract)
        check_fields(contract)
        runner = PolicyRunner.from_checkpoint(settings.checkpoint, device=settings.device)
        contract.check(runner.spec)
        limits = SafetyLimits(contract, runner.spec, {name: getattr(settings, name) for name in LIMITS})
        if settings.instruction:
            runner.reset(settings.instruction)
        self._loop = ControlLoop(
            runner, limits, max_age_s=settings.max_age_s, stop_after_s=settings.stop_after_s
        )
        self._codec = CommandCodec(contract, runner.spec, cmd_vel_stamped=settings.cmd_vel_stamped)
        self._connect()
        self._inputs = Inputs(
            self, contract, runner.spec, lockstep=settings.lockstep, on_message=self._on_input
        )
        self.get_logger().info(f"ready: {settings.checkpoint} for {contract.robot} at {runner.spec.rate_hz} Hz")

    def _connect(self) -> None:
        assert self._loop is not None
        self._memory = MemoryInterface(self, self._loop, self._settings.snapshot_path, self._forget_inputs)
        self._commands = {t: self.create_publisher(kind, t, 10) for t, kind in self._codec.types().items()}
        self._action = self.create_publisher(Float32MultiArray, "~/action", 10)
        self._listeners = [
            self.create_subscription(String, "instruction", self._on_instruction, LATCHED),
            self.create_subscription(Bool, "e_stop", self._on_e_stop, 10),
        ]
        self._memory.publish()

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the ticks, with the memory as it is."""
        assert self._loop is not None
        self._loop.resume()
        self.active = True
        if not self._settings.lockstep:
            self._timer = self.create_timer(self._loop.runner.spec.control_dt_s, self._on_timer)
        self.get_logger().info("active")
        self._on_input()
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the policy, and then the robot: the stop is the last command."""
        self._stop_ticks()
        self.get_logger().info("inactive; the stop command is sent")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy with its memory."""
        self._disconnect()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """From any state: stop the robot if it was moving, then let go of everything."""
        self._stop_ticks()
        self._disconnect()
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """A transition failed half-way: stop the robot and go back to unconfigured."""
        self._stop_ticks()
        self._disconnect()
        return super().on_error(state)

    def _stop_ticks(self) -> None:
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self._timer = None
        if self.active:
            self.active = False
            self._stop_robot()

    def _disconnect(self) -> None:
        if self._loop is None:
            return
        self._loop = None
        self._inputs.close()
        self._memory.close()
        for publisher in (*self._commands.values(), self._action):
            self.destroy_publisher(publisher)
        for listener in self._listeners:
            self.destroy_subscription(listener)

    # Ticks

    def _on_timer(self) -> None:
        assert self._loop is not None
        observation: StampedObservation | ObservationError
        try:
            observation = self._inputs.observation()
        except ObservationError as error:
            observation = error
        self._tick(observation, self.get_clock().now().nanoseconds, Time())

    def _on_input(self) -> None:
        """In lockstep a complete observation is the tick; one that was answered is not ticked again."""
        if not self.active or not self._settings.lockstep:
            return
        stamp_ns = self._inputs.complete_stamp_ns()
        if stamp_ns is None or stamp_ns <= self._answered_ns:
            return
        try:
            observation: StampedObservation | ObservationError = self._inputs.observation()
        except ObservationError as error:
            observation = error
        if self._tick(observation, stamp_ns, ns_to_stamp(stamp_ns)):
            self._answered_ns = stamp_ns

    def _tick(self, observation: StampedObservation | ObservationError, now_ns: int, reply_stamp: Time) -> bool:
        """True if the policy acted. In lockstep the commands carry the observation's stamp, else the time now."""
        assert self._loop is not None
        before, started = self._loop.state, time.perf_counter()
        tick = self._loop.step(observation, now_ns * 1e-9)
        if tick is not None:
            self._publish(self._codec.encode(tick.command, self._stamp(reply_stamp)))
            self._action.publish(self._action_message(tick.action))
            self._memory.publish()
            self._tick_ms = (time.perf_counter() - started) * 1e3
        elif self._loop.state in _STANDING_STILL:
            self._stop_robot()
        if self._loop.state is not before:
            self._report_change()
        return tick is not None

    def _stamp(self, reply_stamp: Time) -> Time:
        return reply_stamp if self._settings.lockstep else self.get_clock().now().to_msg()

    def _publish(self, messages: dict[str, Any]) -> None:
        for topic, message in messages.items():
            self._commands[topic].publish(message)

    def _stop_robot(self) -> None:
        self._publish(self._codec.stop(self.get_clock().now().to_msg()))

    def _action_message(self, action: Any) -> Float32MultiArray:
        """What the policy said, before the limits; the layout names the parts."""
        assert self._loop is not None
        dimensions = [
            MultiArrayDimension(label=part.name, size=part.size, stride=part.size)
            for part in self._loop.runner.spec.actions
        ]
        message = Float32MultiArray(data=action.tolist())
        message.layout.dim = dimensions
        return message

    # Other topics

    def _on_instruction(self, message: String) -> None:
        assert self._loop is not None
        text = message.data.strip()
        if text and self._loop.set_instruction(text):
            self._forget_inputs()
            self._memory.publish()
            self.get_logger().info(f"new instruction, memory emptied: {text}")

    def _on_e_stop(self, message: Bool) -> None:
        assert self._loop is not None
        if message.data == (self._loop.state is State.E_STOP):
            return
        self._loop.set_e_stop(message.data)
        self._report_change()
        if message.data:
            self._stop_robot()
        else:
            self._on_input()

    def _forget_inputs(self) -> None:
        self._answered_ns = 0
        self._inputs.forget()

    # Diagnostics

    def _report_change(self) -> None:
        assert self._loop is not None
        problem = f" ({self._loop.problem})" if self._loop.problem else ""
        self.get_logger().info(f"{self._loop.state.value}{problem}")
        self._publish_diagnostics()

    def _publish_diagnostics(self) -> None:
        message = DiagnosticArray(status=[self._status()])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _status(self) -> DiagnosticStatus:
        status = DiagnosticStatus(name=f"{self.get_name()}: policy", hardware_id="ttm_policy")
        if self._loop is None:
            status.level = DiagnosticStatus.ERROR if self.problem else DiagnosticStatus.WARN
            status.message = self.problem or "not configured"
            return status
        loop = self._loop
        status.level = _LEVELS.get(loop.state, DiagnosticStatus.WARN) if self.active else DiagnosticStatus.WARN
        status.message = (loop.state.value if self.active else "inactive") + (f": {loop.problem}" if loop.problem else "")
        values = {
            "instruction": loop.runner.instruction or "",
            "tick": loop.runner.tick,
            "tick_ms": f"{self._tick_ms:.1f}",
            "held_ticks": loop.held_ticks,
            "memory_norm": f"{sum(float(norm) for norm in loop.runner.memory_norms):.3f}",
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        return status

    def stop_and_flush(self) -> None:
        """On the way out, whatever the reason: stop the robot, and wait until the command has arrived."""
        if not self.active:
            return
        self.trigger_deactivate()
        for publisher in self._commands.values():
            publisher.wait_for_all_acked(Duration(seconds=0.5))


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _start(node: PolicyNode) -> bool:
    """Configure and activate, as a launch file would."""
    return all(
        transition() == TransitionCallbackReturn.SUCCESS for transition in (node.trigger_configure, node.trigger_activate)
    )


def _spin(node: PolicyNode, signals: StopSignals) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    if node.get_parameter("autostart").value and not _start(node):
        return 2
    while not signals.requested:
        executor.spin_once(timeout_sec=0.1)
    return 0


def main() -> int:
    """Run until a signal. Exit code 2: bad parameters, 1: a failure in a tick; the robot is stopped in each case."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signals, node = StopSignals(), PolicyNode()
    try:
        code = _spin(node, signals)
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        node.stop_and_flush()
        node.destroy_node()
        rclpy.try_shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
