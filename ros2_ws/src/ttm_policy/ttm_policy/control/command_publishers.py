"""Publishes the policy's commands, again and again between two ticks, and what stops the robot."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.robot_contract import MOTION_TYPES
from ttm_policy.control.control_loop import PolicyTick, Vector
from ttm_policy.control.held_command import HeldCommand
from ttm_policy.guards.command_echo import CommandEcho
from ttm_policy.guards.stop_thread import StopThread
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import COMMAND, LATCHED

FLUSH_S = 0.5
"""The longest wait for all subscribers to acknowledge the last commands."""

LOOK_HZ = 30.0
"""How often the lifespan of a command that is sent once is looked at."""


class CommandPublishers:
    """One publisher for each command topic, and one for `~/action`.

    Commands that move the robot are sent again `command_rate_hz` times a second with a fresh stamp
    until the next tick. All else, such as the goal of a gripper, is sent once for each tick. If no tick
    follows within `lifespan_ticks`, the robot is stopped. In lockstep nothing is sent again and nothing
    expires, since the simulator waits for the next command.

    What is sent again, and zero at the end of a lifespan and at an emergency stop, comes from `StopThread`;
    all else from the thread of the node.
    """

    def __init__(
        self,
        stop: StopThread,
        codec: CommandCodec,
        parameters: PolicyParameters,
        echo: CommandEcho | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ):
        """echo: what is to know of every command, so that it can tell those of others.

        on_stop: called by the thread of the node when the robot was stopped, since its next motion begins
        at rest.
        """
        node = stop.owner
        self._node, self._codec, self._echo, self._on_stop = node, codec, echo, on_stop
        self._stop_thread, self._lock = stop, stop.lock
        stop.on_stop = self._stop_at_once
        self.is_open = False
        """Whether the robot is this node's to stop at an emergency stop."""
        self._lapsed = False
        """Whether a lifespan has ended since `settle`."""
        self.expired = 0
        """How often a command's lifespan ended before the next tick."""
        self.unheard: set[str] = set()
        """The topics to which nobody listened when the last command was sent; none without `echo`."""
        qos = LATCHED if parameters.lockstep else COMMAND
        self._publishers = {
            topic: node.create_publisher(kind, topic, qos) for topic, kind in codec.types().items()
        }
        self._action = node.create_publisher(Float32MultiArray, "~/action", 10)
        self._held = HeldCommand(
            _smooth_values(codec),
            period_s=codec.spec.control_dt_s,
            lifespan_s=parameters.lifespan_ticks * codec.spec.control_dt_s,
        )
        self._motion_topics = {
            sink.topic for sink in codec.contract.actions if sink.type in MOTION_TYPES
        }
        self._again = parameters.command_rate_hz > 0 and not parameters.lockstep
        self._lives = not parameters.lockstep
        if self._lives:
            # On the steady clock, since simulated time may come in steps as long as a tick.
            steady = Clock(clock_type=ClockType.STEADY_TIME)
            period_s = 1.0 / (parameters.command_rate_hz or LOOK_HZ)
            stop.node.create_timer(period_s, self._keep_up, clock=steady)

    def publish(self, tick: PolicyTick, stamp: Time) -> None:
        """Send the limited command to the robot, and the policy's own action to `~/action`."""
        self.send(tick.command, stamp)
        self.tell(tick.action)

    def send(self, command: Vector, stamp: Time, lifespan_s: float | None = None) -> None:
        """Send a limited command (A,) to the robot. lifespan_s: None for `lifespan_ticks`.

        Nothing is sent if the robot was stopped since it was decided. In lockstep, where the simulator waits
        for an answer, that is zero then.
        """
        if self._echo is not None:
            self.unheard = self._echo.unheard(self._publishers)
        with self._lock:
            stopped = self._stop_thread.stopped
            if self._lives:
                if stopped or self._lapsed:
                    return
                self._held.begin(command, self._now_s(), lifespan_s)
            if self._again:  # a part that is smooth begins with its old value
                begun = self._held.at(self._now_s())
                command = command if begun is None else begun
            still = self._codec.stop(stamp) if stopped else {}
            self._send({**self._codec.encode(command, stamp), **still})

    def settle(self) -> None:
        """Heed that a lifespan has ended. Call this before the limits of the next command are applied."""
        with self._lock:
            if self._lapsed:
                self._lapsed = False
                self._on_stop()

    def tell(self, action: Vector) -> None:
        """Send the policy's own action (A,) to `~/action`."""
        self._action.publish(self._action_message(action))

    def stop(self) -> None:
        """Send zero to all topics that move the robot, stamped with the time now."""
        with self._lock:
            self._send_zero()
            self._lapsed = False
            self._on_stop()

    def _stop_at_once(self) -> None:
        """Send zero at an emergency stop; the thread of the node calls `stop` when it takes note."""
        if self.is_open:
            self._send_zero()

    def _send_zero(self) -> None:
        self._held.stop()
        self._send(self._codec.stop(self._node.get_clock().now().to_msg()))

    def _keep_up(self) -> None:
        """Send what moves the robot once more. At the end of its lifespan stop the robot, once."""
        with self._lock:
            if not self._held.in_force:
                return
            command = self._held.at(self._now_s())
            if command is None:
                self.expired += 1
                self._lapsed = True
                self._send_zero()
            elif self._again:
                messages = self._codec.encode(command, self._node.get_clock().now().to_msg())
                self._send({topic: messages[topic] for topic in self._motion_topics})

    def _send(self, messages: dict[str, Any]) -> None:
        for topic, message in messages.items():
            if self._echo is not None:
                self._echo.sent(topic, message)
            self._publishers[topic].publish(message)

    def _now_s(self) -> float:
        return float(self._node.get_clock().now().nanoseconds) * 1e-9

    def flush(self) -> None:
        """Wait until the commands have arrived, since an exit drops those not sent yet."""
        until_s = time.monotonic() + FLUSH_S
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=max(0.0, until_s - time.monotonic())))

    def close(self) -> None:
        """Destroy all publishers. The `StopThread` must have ended."""
        for publisher in (*self._publishers.values(), self._action):
            self._node.destroy_publisher(publisher)

    def _action_message(self, action: npt.NDArray[np.float32]) -> Float32MultiArray:
        """Return the action (A,) with the names of its parts in the layout."""
        message = Float32MultiArray(data=action.tolist())
        message.layout.dim = [
            MultiArrayDimension(label=part.name, size=part.size, stride=part.size)
            for part in self._codec.spec.actions
        ]
        return message


def _smooth_values(codec: CommandCodec) -> npt.NDArray[np.bool_]:
    """Return (A,): which values of an action the contract wants to change smoothly."""
    smooth = np.zeros(codec.spec.action_size, np.bool_)
    for sink in codec.contract.actions:
        smooth[codec.spec.action_slices[sink.name]] = sink.smooth
    return smooth
