"""Publishes commands, again and again between two ticks, of the policy or of a person."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, MultiArrayDimension, String
from std_srvs.srv import Trigger

from ttm.policy.errors import MissingObservation, ObservationError, printable
from ttm_policy.contract import RAMP, measured_goals
from ttm_policy.control_loop import Watchdog
from ttm_policy.guards import CommandEcho, StopThread
from ttm_policy.inference import LoadedPolicy
from ttm_policy.inputs import (
    DRIVER_TOPIC,
    PERIOD_S,
    PERSON,
    POLICY,
    TIMEOUT_S,
    StampedObservation,
    Vector,
    from_message,
)
from ttm_policy.limits import RobotDescription, SafetyLimits
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import steady_timer
from ttm_policy.qos import COMMAND, LATCHED

FLUSH_S = 0.5
"""The longest wait for all subscribers to acknowledge the last commands."""
LOOK_HZ = 30.0
"""How often the lifespan of a command that is sent once is looked at."""
LONGEST_NAME = 100
"""The longest name of a person who drives, which stands in every message of diagnostics."""
Seen = Mapping[str, npt.NDArray[Any]]


class HeldCommand:
    """The command in force between two ticks, as a function of time."""

    def __init__(self, smooth: npt.NDArray[np.bool_], *, period_s: float, lifespan_s: float):
        """smooth: (A,), the values that go over to the next one linearly, over `RAMP` of `period_s`."""
        self._smooth, self._ramp_s, self._lifespan_s = smooth, RAMP * period_s, lifespan_s
        self._old: Vector = np.zeros(smooth.shape, np.float32)
        self._new: Vector | None = None
        self._begin_s, self._lives_s = 0.0, lifespan_s

    @property
    def in_force(self) -> bool:
        """Whether a command was begun that was not stopped since. Its lifespan may have ended."""
        return self._new is not None

    def begin(self, command: Vector, now_s: float, lifespan_s: float | None = None) -> None:
        """Let a command (A,) follow the one before, or standing still; lifespan_s: None for the usual one."""
        before = self.at(now_s)
        self._old = np.zeros_like(command) if before is None else before
        self._new, self._begin_s = command, now_s
        self._lives_s = self._lifespan_s if lifespan_s is None else lifespan_s

    def at(self, now_s: float) -> Vector | None:
        """Return the command (A,) at a time; None after its lifespan, or if the clock was set back."""
        age_s = now_s - self._begin_s
        if self._new is None or not 0 <= age_s <= self._lives_s:
            return None
        share = np.where(self._smooth, min(1.0, age_s / self._ramp_s), 1.0).astype(np.float32)
        # Where the share is 1 the bits of the command stay as they are.
        return np.where(share < 1.0, self._old + share * (self._new - self._old), self._new)

    def stop(self) -> None:
        """Let nothing be in force any more."""
        self._new = None


class CommandPublishers:
    """One publisher for each command topic, and one for `~/action`.

    Commands that move the robot are sent again `command_rate_hz` times a second with a fresh stamp until the
    next tick, since controllers such as MoveIt Servo stop sooner than a policy decides. All else, such as the
    goal of a gripper, is sent once. If no tick follows within `lifespan_ticks`, the robot is stopped. In
    lockstep nothing is sent again and nothing expires, since the simulator waits for the next command.

    What is sent again, and zero at the end of a lifespan and at an emergency stop, comes from `StopThread`;
    all else from the thread of the node.
    """

    def __init__(
        self,
        stop: StopThread,
        loaded: LoadedPolicy,
        parameters: PolicyParameters,
        echo: CommandEcho | None = None,
    ):
        """echo: gets every command, so that it can recognise those of others."""
        node, codec = stop.owner, loaded.codec
        self._node, self._codec, self._limits, self._echo = node, codec, loaded.limits, echo
        self._stop_thread, self._lock = stop, stop.lock
        stop.on_stop = self._stop_at_once
        self.is_open = False
        """Whether the robot is this node's to stop at an emergency stop."""
        self._lapsed = False
        """Whether a lifespan has ended since `acknowledge_expiry`."""
        self.expired = 0
        """How often a command's lifespan ended before the next tick."""
        self.unheard: set[str] = set()
        """The topics to which nobody listened when the last command was sent; none without `echo`."""
        qos = LATCHED if parameters.lockstep else COMMAND
        self._publishers = {
            topic: node.create_publisher(kind, topic, qos) for topic, kind in codec.types().items()
        }
        self._action = node.create_publisher(Float32MultiArray, "~/action", 10)
        smooth, tick_s = np.zeros(codec.spec.action_size, np.bool_), codec.spec.control_dt_s
        for sink in codec.contract.actions:
            smooth[codec.spec.action_slices[sink.name]] = sink.smooth
        lifespan_s = parameters.lifespan_ticks * tick_s
        self._held = HeldCommand(smooth, period_s=tick_s, lifespan_s=lifespan_s)
        self._lives = not parameters.lockstep
        self._again = self._lives and parameters.command_rate_hz > 0
        if self._lives:
            steady_timer(stop.node, 1.0 / (parameters.command_rate_hz or LOOK_HZ), self._keep_up)

    def send(self, command: Vector, stamp: Time, lifespan_s: float | None = None) -> None:
        """Send a limited command (A,), unless the robot was stopped since; in lockstep zero is sent then."""
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

    def acknowledge_expiry(self) -> None:
        """Note that a lifespan has ended. Call this before the limits of the next command are applied."""
        with self._lock:
            if self._lapsed:
                self._lapsed = False
                self._limits.halt()

    def publish_action(self, action: Vector) -> None:
        """Send the policy's own action (A,) to `~/action`, with the names of its parts in the layout."""
        message = Float32MultiArray(data=action.tolist())
        message.layout.dim = [
            MultiArrayDimension(label=part.name, size=part.size, stride=part.size)
            for part in self._codec.spec.actions
        ]
        self._action.publish(message)

    def stop(self) -> None:
        """Send zero to all topics that move the robot, stamped with the time now."""
        with self._lock:
            self._send_zero()
            self._lapsed = False
            self._limits.halt()

    def _stop_at_once(self) -> None:
        """Send zero at an emergency stop; the thread of the node calls `stop` when it learns of it."""
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
                self._send({topic: messages[topic] for topic in self._codec.motion_topics})

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


class CommandMux:
    """A command multiplexer: sends the commands of the policy or, in its place, of a person.

    A person takes over by sending a command, and gives back by the service `~/give_back`. Until then the
    robot stands still while they send none. The policy goes on ticking: its memory sees every observation,
    and as the previous action what the person did. In lockstep a person drives from tick to tick.
    """

    def __init__(
        self,
        node: Node,
        loaded: LoadedPolicy,
        parameters: PolicyParameters,
        publishers: CommandPublishers,
        watchdog: Watchdog,
    ):
        """watchdog: says whether a person may drive now."""
        self._node, self.publishers, self._watchdog = node, publishers, watchdog
        self._contract, self._spec = loaded.codec.contract, loaded.runner.spec
        self._lockstep = parameters.lockstep
        times = {} if self._lockstep else {"period_s": PERIOD_S, "lasts_s": TIMEOUT_S}
        self._limits = SafetyLimits(self._contract, self._spec, parameters.limits, **times)
        self._policy_limits = loaded.limits
        self._description = RobotDescription(node, loaded.limits, self._limits)
        self.person = ""
        """The person who drives in the policy's place, or an empty text."""
        self.problem = ""
        """Why the person who drives does not move the robot, or an empty text."""
        self._wish: Vector | None = None
        self._heard_s = 0.0
        self._gave_back = "", -math.inf
        self._in_force: Vector | None = None
        self._drove = False
        self._driver = node.create_publisher(String, DRIVER_TOPIC, LATCHED)
        node.create_service(Trigger, "~/give_back", self._give_back)
        self._driver.publish(String(data=POLICY))

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits for the commands of a person."""
        self._limits.set_limits(limits)

    def require_limits(self) -> None:
        """Raise `MissingObservation` while the limits of the joints are still on their way."""
        if not self._lockstep and (problem := self._description.problem):
            raise MissingObservation(problem)

    def with_executed(self, observation: StampedObservation) -> StampedObservation:
        """Return the observation with what a person did since the last tick, unless the robot reports it."""
        drove, self._drove = self._drove or bool(self.person), False
        if not drove or observation.executed is not None or self._in_force is None:
            return observation
        return replace(observation, executed=self._in_force)

    def publish(self, command: Vector, stamp: Time, observation: Seen) -> Vector:
        """Send the policy's command unless a person drives; return the command (A,) that is in force."""
        if not self.person:
            self.publishers.send(command, stamp)
            self._policy_limits.halt(self.publishers.unheard)
            self._in_force = command
        elif self._lockstep:
            wish = self._wish
            self._in_force = self._still() if wish is None else self._limited(wish, observation)
            self._wish, self._drove = None, True
            self.publishers.send(self._in_force, stamp)
        return self._still() if self._in_force is None else self._in_force

    def stop(self) -> None:
        """Stop the robot, unless a person moves it who may."""
        if self._moves():
            with suppress(ObservationError):
                self._watchdog.observe_for_person()
                return
        self._stop()

    def watch(self) -> None:
        """Note that the person who drives has fallen silent. Their last command has ended by itself."""
        if self.person and not self._lockstep and not self._moves() and not self.problem:
            self._refuse(f"{self.person} has been silent for more than {TIMEOUT_S:g} s")

    def accepts(self, message: JointState) -> bool:
        """Return whether the sender of a command may drive, whatever the command is."""
        person, now_s = _sender(message), time.monotonic()
        who, when_s = self._gave_back
        early = person == who and now_s - when_s < TIMEOUT_S  # may be from before they gave back
        often = now_s - self._heard_s < PERIOD_S / 2  # limits of acceleration count whole periods
        if not self.publishers.is_open or (not self._lockstep and (early or often)):
            return False
        if self.person not in ("", person) and self._moves():
            self._node.get_logger().warning(
                f"{person} is refused while {self.person} drives", throttle_duration_sec=1.0
            )
            return False
        return True

    def drive(self, message: JointState) -> None:
        """Carry out a command that is accepted, after a look at the emergency stop; its sender drives now."""
        person = _sender(message)
        try:
            wish = from_message(self._spec, message)
            self.require_limits()
            seen, seen_s = self._watchdog.observe_for_person()
            self.publishers.acknowledge_expiry()
            if person != self.person:
                self._take_over(person)
            elif not self._lockstep and not self._moves():  # the robot stands
                self._limits.halt()
            self._wish, self._heard_s, self.problem = wish, time.monotonic(), ""
            if not self._lockstep:
                self._in_force, self._drove = self._limited(wish, seen, seen_s), True
                stamp = self._node.get_clock().now().to_msg()
                self.publishers.send(self._in_force, stamp, TIMEOUT_S)
                self._limits.halt(self.publishers.unheard)
        except ObservationError as error:
            self._refuse(str(error))

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

    def _take_over(self, person: str) -> None:
        self._limits.halt()
        self.person = person
        self._driver.publish(String(data=PERSON))
        self._node.get_logger().info(f"{person} drives; call ~/give_back to let the policy drive")

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

    def _moves(self) -> bool:
        """Return whether a person's command is in force."""
        return bool(self.person) and time.monotonic() - self._heard_s <= TIMEOUT_S

    def _stop(self) -> None:
        self.publishers.stop()
        self._limits.halt()
        if self._in_force is not None:
            self._in_force = self._limits.stopped(self._in_force)

    def _still(self) -> Vector:
        """Return the command (A,) that keeps everything where it is in force, or else zero."""
        if self._in_force is None:
            return self._limits.stopped(np.zeros(self._spec.action_size, np.float32))
        return self._limits.stopped(self._in_force)

    def _limited(self, wish: Vector, seen: Seen, seen_s: float | None = None) -> Vector:
        """Return the wish (A,) within the limits, with what is in force or measured in place of NaN."""
        start = self._still()
        if self._in_force is None:
            start = measured_goals(self._contract, self._spec, seen)
        wanted = np.where(np.isnan(wish), start, wish).astype(np.float32)
        if np.isnan(wanted).any():
            raise MissingObservation("where joints are is not measured; add them to the contract")
        if seen_s is None:
            return self._limits.apply(wanted, seen)
        now_s = float(self._node.get_clock().now().nanoseconds) * 1e-9
        return self._limits.apply(wanted, seen, late_s=max(0.0, now_s - seen_s), now_s=now_s)


def _sender(message: JointState) -> str:
    return printable(message.header.frame_id, LONGEST_NAME) or "a person"
