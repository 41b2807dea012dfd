"""Hands what a person wants to a policy node, in whose place he drives until he gives back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import ObservationError
from ttm_policy.contract.measured_goals import measured_goals
from ttm_policy.inputs.inputs import Inputs
from ttm_policy.inputs.person_command import DRIVER_TOPIC, POLICY, TOPIC, to_message
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.source import Vector


class PolicyOutput:
    """The topic on which a policy node listens to a person.

    The policy node has the limits, the guards and the emergency stop. A person who has taken over keeps
    telling it to stand still while he touches nothing, so that it knows that he is there.
    """

    def __init__(self, node: Node, cockpit: Cockpit, policy: str) -> None:
        """policy: the name of the policy node."""
        self._node, self._cockpit, self._policy = node, cockpit, policy
        self._person = f"{node.get_name()}-{os.getpid()}"
        self.moves = self._has_taken_over = False
        self._publisher = node.create_publisher(JointState, TOPIC, COMMAND)
        self._client = node.create_client(Trigger, f"{policy}/give_back")
        self._subscription = node.create_subscription(
            String, DRIVER_TOPIC, self._on_driver, LATCHED
        )
        spec = replace(cockpit.spec, cameras=())
        self._inputs = Inputs(node, cockpit.measured, spec, lockstep=False, on_message=lambda: None)
        self._still = np.where(cockpit.is_goal, np.nan, 0).astype(np.float32)

    @property
    def problem(self) -> str:
        """Why no policy node listens, or an empty text."""
        if self._publisher.get_subscription_count():
            return ""
        topic = self._node.resolve_topic_name(TOPIC)
        return (
            f"{self._policy} does not listen to {topic}; wait until it has loaded its policy, start it, or "
            "set the parameter policy to its name"
        )

    def send(self, wish: Vector) -> None:
        """Take over, or drive on, with a wish (A,)."""
        goals = self._cockpit.goals
        given = np.isfinite(wish) & self._cockpit.is_goal
        goals.values = np.where(given, wish, goals.values).astype(np.float32)
        self.moves = self._has_taken_over = True
        self._publish(wish)

    def rest(self) -> None:
        """Stand still if this person has taken over."""
        self.moves = False
        self._measure()
        if self._has_taken_over:
            self._publish(self._still)

    def give_back(self) -> None:
        """Let the policy drive again."""
        self.moves = self._has_taken_over = False
        self._client.call_async(Trigger.Request())

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Do nothing: the limits are those of the policy node."""

    def flush(self) -> None:
        """Do nothing: the robot stands still when the commands end."""

    def close(self) -> None:
        """Destroy all topics. The robot stands still until somebody calls `~/give_back`."""
        self._inputs.close()
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_client(self._client)
        self._node.destroy_publisher(self._publisher)

    def _publish(self, wish: Vector) -> None:
        stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(to_message(self._cockpit.spec, wish, stamp, self._person))

    def _on_driver(self, message: String) -> None:
        """Somebody else may have given back."""
        self._has_taken_over &= message.data != POLICY

    def _measure(self) -> None:
        """Note where joints and gripper are, from which controls move them on."""
        try:
            seen = self._inputs.observation().values if self._cockpit.measured.vectors else {}
        except ObservationError:
            return
        found = measured_goals(self._cockpit.contract, self._cockpit.spec, seen)
        goals = np.where(self._cockpit.is_goal, found, np.nan)
        self._cockpit.goals.values = goals.astype(np.float32)
