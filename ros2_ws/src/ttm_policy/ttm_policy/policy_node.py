"""The policy as a managed ROS 2 node: topics in, one tick, commands out.

configure loads the checkpoint and warms it up; activate starts the ticks; deactivate stops the policy and
then the robot. The memory outlasts deactivation: only another instruction or `~/reset_memory` empties it.

    ros2 run ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors -p instruction:="pick up the red can"
    python -m ttm_policy.policy_node --ros-args …                    (the same without a ROS install)
"""

from __future__ import annotations

import sys
import time
import traceback

import rclpy
import torch
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions
from rclpy.timer import Timer
from std_msgs.msg import Bool, String

from ttm.policy.errors import ObservationError, UserError
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.shipped import default_checkpoint
from ttm_policy.command_publishers import CommandPublishers
from ttm_policy.commands import CommandCodec
from ttm_policy.contract import LIMITS, load_contract
from ttm_policy.control_loop import STANDING_STILL, ControlLoop, State
from ttm_policy.conversions import check_fields, ns_to_stamp
from ttm_policy.diagnostics import policy_status, unconfigured_status
from ttm_policy.inputs import Inputs
from ttm_policy.limits import SafetyLimits
from ttm_policy.memory_interface import MemoryInterface
from ttm_policy.quality import LATCHED
from ttm_policy.settings import PolicySettings, declare_settings, read_settings
from ttm_policy.stop_signals import StopSignals

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)


class PolicyNode(LifecycleNode):
    """Translates between topics and a `ControlLoop`."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        declare_settings(self, PolicySettings)
        self.active = False
        self._problem = ""
        self._connection: _Connection | None = None
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Wall time on purpose: it goes on when simulated time stands still.
        self.create_timer(
            1.0, self.publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, check and warm up; connect to all topics, but command nothing."""
        try:
            self._connection = _Connection(self, read_settings(self, PolicySettings))
        except UserError as error:
            self._problem = " ".join(str(error).split())
            self.get_logger().error(self._problem)
            return FAILURE
        except Exception:  # rclpy would swallow it without a word
            self._problem = "configure failed; see the log"
            self.get_logger().error(traceback.format_exc())
            return ERROR
        self._problem = ""
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the ticks, with the memory as it is."""
        self.active = True
        assert self._connection is not None
        self._connection.start()
        self.get_logger().info("active")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the policy, and then the robot: the stop is the last command."""
        self._stop()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy with its memory."""
        self._disconnect()
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """From any state: stop the robot if it was moving, then let go of everything."""
        self._disconnect()
        return SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """A transition failed half-way: stop the robot and go back to unconfigured."""
        self._disconnect()
        return SUCCESS

    def _stop(self) -> None:
        if self.active and self._connection is not None:
            self.active = False
            self._connection.stop()
            self.get_logger().info("the policy is stopped, and then the robot")

    def _disconnect(self) -> None:
        self._stop()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def publish_diagnostics(self) -> None:
        """Every second, and at every change."""
        name = f"{self.get_name()}: policy"
        status = (
            self._connection.status(name)
            if self._connection
            else unconfigured_status(name, self._problem)
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def close(self) -> None:
        """On the way out, whatever the reason: stop the robot, and wait until the command has arrived."""
        if self.active:
            self.trigger_deactivate()
        if self._connection is not None:
            self._connection.commands.flush()


class _Connection:
    """All that lives from configure to cleanup: the policy, its topics and services, and the ticks."""

    def __init__(self, node: PolicyNode, settings: PolicySettings):
        self._node, self._settings = node, settings
        self._timer: Timer | None = None
        self._tick_ms = 0.0
        runner, codec, limits = _load(settings)
        self.loop = ControlLoop(
            runner, limits, max_age_s=settings.max_age_s, stop_after_s=settings.stop_after_s
        )
        self._memory = MemoryInterface(node, self.loop, settings.snapshot_path, self._begin_episode)
        self.commands = CommandPublishers(node, codec, lockstep=settings.lockstep)
        self._inputs = Inputs(
            node, codec.contract, runner.spec, lockstep=settings.lockstep, on_message=self._on_input
        )
        self._listeners = [
            node.create_subscription(String, "instruction", self._on_instruction, LATCHED),
            node.create_subscription(Bool, "e_stop", self._on_e_stop, 10),
        ]
        self._memory.publish()
        node.get_logger().info(
            f"ready: {settings.checkpoint or 'the shipped policy'} for {runner.spec.robot} at {runner.spec.rate_hz} Hz"
        )

    def start(self) -> None:
        """Ticks at the policy's rate, or one for each complete observation."""
        self.loop.resume()
        if not self._settings.lockstep:
            self._timer = self._node.create_timer(
                self.loop.runner.spec.control_dt_s, self._on_timer
            )
        self._on_input()

    def stop(self) -> None:
        """No further tick, and then the stop command."""
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        self.commands.stop()

    def close(self) -> None:
        """Withdraw topics and services."""
        self._inputs.close()
        self._memory.close()
        self.commands.close()
        for listener in self._listeners:
            self._node.destroy_subscription(listener)

    def status(self, name: str) -> DiagnosticStatus:
        """For /diagnostics."""
        return policy_status(name, self.loop, active=self._node.active, tick_ms=self._tick_ms)

    def _on_timer(self) -> None:
        now = self._node.get_clock().now()
        self._tick(now.nanoseconds, now.to_msg())

    def _on_input(self) -> None:
        """In lockstep a complete observation is the tick, and the commands carry its stamp; each is answered once."""
        if not self._node.active or not self._settings.lockstep:
            return
        stamp_ns = self._inputs.complete_stamp_ns()
        if stamp_ns is not None and stamp_ns > self.loop.last_stamp_ns:
            self._tick(stamp_ns, ns_to_stamp(stamp_ns))

    def _tick(self, now_ns: int, reply_stamp: Time) -> None:
        before, started_s = self.loop.state, time.perf_counter()
        tick = None
        try:
            tick = self.loop.step(self._inputs.observation(), now_ns * 1e-9)
        except ObservationError as error:
            self.loop.hold(error, now_ns * 1e-9)
        if tick is not None:
            self.commands.publish(tick, reply_stamp)
            self._memory.publish()
            self._tick_ms = (time.perf_counter() - started_s) * 1e3
        elif self.loop.state in STANDING_STILL:
            self.commands.stop()
        self._report_if_changed(before)

    def _on_instruction(self, message: String) -> None:
        text = message.data.strip()
        if not text or text == self.loop.runner.instruction:
            return
        if self._node.active:
            self.commands.stop()  # the language model may take seconds, and what was wanted is no longer wanted
        self.loop.reset(text)
        self._memory.publish()
        self._node.get_logger().info(f"new instruction, memory emptied: {text}")

    def _on_e_stop(self, message: Bool) -> None:
        before = self.loop.state
        self.loop.set_e_stop(message.data)
        self._report_if_changed(before)
        if message.data:
            self.commands.stop()
        else:
            self._on_input()

    def _begin_episode(self) -> None:
        """A simulator that starts again begins with old stamps; what was answered must not be answered again."""
        if (
            not self._settings.lockstep
            or self._inputs.complete_stamp_ns() == self.loop.last_stamp_ns
        ):
            self._inputs.forget()
        self.loop.last_stamp_ns = 0

    def _report_if_changed(self, before: State) -> None:
        if self.loop.state is not before:
            problem = f": {self.loop.problem}" if self.loop.problem else ""
            self._node.get_logger().info(f"{self.loop.state.value}{problem}")
            self._node.publish_diagnostics()


def _load(settings: PolicySettings) -> tuple[PolicyRunner, CommandCodec, SafetyLimits]:
    """Everything that can be wrong with parameters, contract and checkpoint is found out here."""
    checkpoint = settings.checkpoint or str(default_checkpoint())
    torch.set_num_threads(settings.threads)
    contract = load_contract(settings.contract)
    check_fields(contract)
    runner = PolicyRunner.from_checkpoint(
        checkpoint, device=settings.device, engine=settings.engine, precision=settings.precision
    )
    contract.check(runner.spec)
    limits = SafetyLimits(contract, runner.spec, {name: getattr(settings, name) for name in LIMITS})
    if settings.instruction:
        runner.reset(settings.instruction)
    return (
        runner,
        CommandCodec(contract, runner.spec, cmd_vel_stamped=settings.cmd_vel_stamped),
        limits,
    )


def _start(node: PolicyNode) -> bool:
    """Configure and activate, as a launch file would."""
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


def main() -> int:
    """Run until a signal. Exit code 2: bad parameters, 1: a failure in a tick; the robot is stopped in each case."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signals, node = StopSignals(), PolicyNode()
    try:
        return _spin(node, signals)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        node.close()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
