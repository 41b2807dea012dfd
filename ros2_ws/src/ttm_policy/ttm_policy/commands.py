"""Publishes the policy's commands, again and again between two ticks, and what stops the robot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, MultiArrayDimension, String
from std_srvs.srv import Trigger

from ttm.policy.errors import MissingObservation, ObservationError, printable
from ttm_policy.contract import MOTION_TYPES, measured_goals
from ttm_policy.control_loop import HeldCommand, PolicyTick, Vector
from ttm_policy.guards import CommandEcho, StopThread
from ttm_policy.inference import LoadedPolicy
from ttm_policy.inputs import (
    DRIVER_TOPIC,
    PERIOD_S,
    PERSON,
    POLICY,
    TIMEOUT_S,
    TOPIC,
    StampedObservation,
    from_message,
)
from ttm_policy.limits import RobotDescription, SafetyLimits
from ttm_policy.messages import CommandCodec
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


# Lets either the policy or a person command the robot.
#
# A person takes over by sending a command, and gives back by the service `~/give_back`. Until then his last
# command counts, and the robot stands still while he sends none. The policy goes on ticking meanwhile: its
# memory sees every observation, and as the previous action what the person did.

LONGEST_NAME = 100
"""Of who drives, which is told in every message of diagnostics."""
Seen = Mapping[str, npt.NDArray[Any]]


class Helm:
    """Sends the commands of whoever drives. In lockstep, a person drives from tick to tick."""

    def __init__(
        self,
        node: Node,
        loaded: LoadedPolicy,
        parameters: PolicyParameters,
        commands: CommandPublishers,
        look: Callable[[], tuple[Seen, float]],
    ):
        """look: see `ttm_policy.control_loop.Vigilance.look_for_person`; it heeds the emergency stop."""
        self._node, self._commands, self._look = node, commands, look
        self._contract, self._spec = loaded.codec.contract, loaded.runner.spec
        self._lockstep = parameters.lockstep
        self._limits = SafetyLimits(
            self._contract,
            self._spec,
            parameters.limits,
            period_s=self._spec.control_dt_s if self._lockstep else PERIOD_S,
            lasts_s=self._spec.control_dt_s if self._lockstep else TIMEOUT_S,
        )
        self._policy_limits = loaded.limits
        self._description = RobotDescription(node, loaded.limits, self._limits)
        self.person = ""
        """Who drives in the policy's place, or an empty text."""
        self.problem = ""
        """Why the person who drives does not move the robot, or an empty text."""
        self._wish: Vector | None = None
        self._heard_s = 0.0
        self._gave_back = "", -math.inf
        self._force: Vector | None = None
        self._drove = False
        self._subscription = node.create_subscription(JointState, TOPIC, self._receive, COMMAND)
        self._driver = node.create_publisher(String, DRIVER_TOPIC, LATCHED)
        self._service = node.create_service(Trigger, "~/give_back", self._give_back)
        self._driver.publish(String(data=POLICY))

    @property
    def is_open(self) -> bool:
        """Whether a person may drive. The robot is stopped by `release` before this becomes False."""
        return self._commands.is_open

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._commands.is_open = is_open

    @property
    def expired(self) -> int:
        """How often a command's lifespan ended before the next one."""
        return self._commands.expired

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits for what a person commands."""
        self._limits.set_limits(limits)

    def publish(self, tick: PolicyTick, stamp: Time, observation: Seen) -> Vector:
        """Send the policy's command unless a person drives; return the command (A,) that is in force."""
        if not self.person:
            self._commands.publish(tick, stamp)
            self._policy_limits.halt(self._commands.unheard)
            self._force = tick.command
            return tick.command
        if self._lockstep:
            wish = self._wish
            command = self._still() if wish is None else self._limited(wish, observation)
            self._wish, self._force, self._drove = None, command, True
            self._commands.publish(replace(tick, command=command), stamp)
        else:
            self._commands.tell(tick.action)
        return self._still() if self._force is None else self._force

    def settle(self) -> None:
        """Heed that a lifespan has ended. Call this before the limits of the policy's command are applied."""
        self._commands.settle()

    def require_limits(self) -> None:
        """Raise `MissingObservation` while the limits of the joints are still on their way."""
        if not self._lockstep and (problem := self._description.problem):
            raise MissingObservation(problem)

    def with_executed(self, observation: StampedObservation) -> StampedObservation:
        """Return the observation with what a person did since the last tick, unless the robot reports it."""
        drove, self._drove = self._drove or bool(self.person), False
        if not drove or observation.executed is not None or self._force is None:
            return observation
        return replace(observation, executed=self._force)

    def stop(self) -> None:
        """Stop the robot, unless a person moves it who may."""
        if self._moves() and not self._refusal():
            return
        self._stop()

    def watch(self) -> None:
        """Note that a person who drives has fallen silent. His last command has ended by itself."""
        if self.person and not self._lockstep and not self._moves() and not self.problem:
            self._refuse(f"{self.person} has been silent for more than {TIMEOUT_S:g} s")

    def flush(self) -> None:
        """Wait until the last commands have arrived."""
        self._commands.flush()

    def close(self) -> None:
        """Destroy all topics and the service."""
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._driver)
        self._node.destroy_service(self._service)
        self._description.close()
        self._commands.close()

    def _receive(self, message: JointState) -> None:
        """Take a command of a person, who drives from now on if nobody else does."""
        person = printable(message.header.frame_id, LONGEST_NAME) or "a person"
        if not self.is_open or self._has_just_given_back(person):
            return
        if not self._lockstep and time.monotonic() - self._heard_s < PERIOD_S / 2:
            return  # limits of acceleration hold for one command in each period
        if self.person not in ("", person) and self._moves():
            self._node.get_logger().warning(
                f"{person} is refused while {self.person} drives", throttle_duration_sec=1.0
            )
            return
        try:
            wish = from_message(self._spec, message)
            self.require_limits()
            seen, seen_s = self._look()
            self._commands.settle()
            if person != self.person:
                self._take_over(person)
            elif not self._lockstep and not self._moves():  # the robot stands
                self._limits.halt()
            self._wish, self._heard_s, self.problem = wish, time.monotonic(), ""
            if not self._lockstep:
                self._force, self._drove = self._limited(wish, seen, seen_s), True
                stamp = self._node.get_clock().now().to_msg()
                self._commands.send(self._force, stamp, TIMEOUT_S)
                self._limits.halt(self._commands.unheard)
        except ObservationError as error:
            self._refuse(str(error))

    def _has_just_given_back(self, person: str) -> bool:
        """Return whether a command may still come from before the person has given back."""
        who, when_s = self._gave_back
        return not self._lockstep and person == who and time.monotonic() - when_s < TIMEOUT_S

    def _take_over(self, person: str) -> None:
        self._limits.halt()
        self.person = person
        self._driver.publish(String(data=PERSON))
        self._node.get_logger().info(f"{person} drives; call ~/give_back to let the policy drive")

    def release(self) -> None:
        """Stop the robot if a person drives, and let the policy drive from its next tick on."""
        if not self.person:
            return
        self._gave_back = self.person, time.monotonic()
        self.person, self._wish, self.problem, self._drove = "", None, "", True
        if not self._lockstep:  # a simulator in lockstep would take it for an answer
            self._stop()
        self._driver.publish(String(data=POLICY))
        self._node.get_logger().info("the policy drives")

    def _give_back(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = bool(self.person)
        response.message = "the policy drives" if self.person else "the policy drives already"
        self.release()
        return response

    def _refuse(self, problem: str) -> None:
        if self.person and problem != self.problem:
            self._stop()
            self._node.get_logger().warning(problem, throttle_duration_sec=1.0)
        self.problem = problem if self.person else ""

    def _refusal(self) -> str:
        try:
            self._look()
        except ObservationError as error:
            return str(error)
        return ""

    def _moves(self) -> bool:
        """Return whether a person's command is in force."""
        return bool(self.person) and time.monotonic() - self._heard_s <= TIMEOUT_S

    def _stop(self) -> None:
        self._commands.stop()
        self._limits.halt()
        if self._force is not None:
            self._force = self._limits.stopped(self._force)

    def _still(self) -> Vector:
        """Return the command (A,) that keeps everything where it is in force, or else zero."""
        force = np.zeros(self._spec.action_size, np.float32) if self._force is None else self._force
        return self._limits.stopped(force)

    def _limited(self, wish: Vector, seen: Seen, seen_s: float | None = None) -> Vector:
        """Return the wish (A,) within the limits, with what is in force, or measured, in place of NaN.

        seen_s: when it was seen, in seconds; None for now.
        """
        known = self._force is not None
        start = self._still() if known else measured_goals(self._contract, self._spec, seen)
        wanted = np.where(np.isnan(wish), start, wish).astype(np.float32)
        if np.isnan(wanted).any():
            raise MissingObservation(
                "where joints of the action are is not measured; add them to the contract's observations, "
                "or let the policy act first"
            )
        if seen_s is None:
            return self._limits.apply(wanted, seen)
        now_s = float(self._node.get_clock().now().nanoseconds) * 1e-9
        return self._limits.apply(wanted, seen, late_s=max(0.0, now_s - seen_s), now_s=now_s)
