"""Lets either the policy or a person command the robot.

A person takes over by sending a command, and gives back by the service `~/give_back`. Until then his last
command counts, and the robot stands still while he sends none. The policy goes on ticking meanwhile: its
memory sees every observation, and as the previous action what the person did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import MissingObservation, ObservationError, printable
from ttm_policy.contract.measured_goals import measured_goals
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.control.command_publishers import CommandPublishers
from ttm_policy.control.control_loop import PolicyTick
from ttm_policy.control.robot_description import RobotDescription
from ttm_policy.inputs.person_command import (
    DRIVER_TOPIC,
    PERIOD_S,
    PERSON,
    POLICY,
    TIMEOUT_S,
    TOPIC,
    from_message,
)
from ttm_policy.inputs.stamped_observation import StampedObservation, Vector
from ttm_policy.network.loading import LoadedPolicy
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import COMMAND, LATCHED

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
        """look: see `ttm_policy.control.vigilance.Vigilance.look_for_person`; it heeds the emergency stop."""
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
