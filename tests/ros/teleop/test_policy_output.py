"""A person takes over from a policy node, which a node of the test stands in for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from teleoperation import FakeSource, ServedNodes

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, PERSON_TOPIC, POLICY, from_message
from ttm_policy.parameters import TeleopParameters
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.teleop.session import TeleopSession
from ttm_policy.teleop.source import TeleopContext


class Policy(Node):
    """Lets a person drive as soon as they send something."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        self.received: list[np.ndarray] = []
        self._driver = self.create_publisher(String, DRIVER_TOPIC, LATCHED)
        self.create_subscription(JointState, PERSON_TOPIC, self._receive, COMMAND)
        self.create_service(Trigger, "~/give_back", self._give_back)
        self.given_back = 0

    def _receive(self, message: JointState) -> None:
        self.received.append(from_message(SPEC, message))
        self._driver.publish(String(data=PERSON))

    def _give_back(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.given_back += 1
        self._driver.publish(String(data=POLICY))
        return response


class Both(ServedNodes):
    def __init__(self) -> None:
        self.person, self.policy = Node("teleop"), Policy()
        super().__init__(self.person, self.policy)


@pytest.fixture
def nodes() -> Iterator[Both]:
    rclpy.init()
    served = Both()
    yield served
    served.close()


def test_touching_takes_over_and_only_giving_back_lets_go(
    nodes: Both, context: TeleopContext, still: np.ndarray
) -> None:
    node, policy, until = nodes.person, nodes.policy, nodes.until
    hand, forward = FakeSource("hand"), still.copy()
    forward[SPEC.action_slices["base"].start] = 0.3
    session = TeleopSession(node, context, TeleopParameters(policy="policy_node"), hand)
    until(lambda: not session.problem)
    assert not policy.received, "nobody touches the controls"

    hand.wanted = forward
    until(lambda: len(policy.received) > 2)
    assert np.array_equal(policy.received[0], forward, equal_nan=True)
    assert session.driver == "hand"

    hand.wanted = None
    count = len(policy.received)
    until(lambda: len(policy.received) > count + 3)
    assert np.array_equal(policy.received[-1], still, equal_nan=True)
    assert session.driver == ""

    hand.ask_to_give_back()
    until(lambda: policy.given_back == 1)
    count = len(policy.received)
    for _ in range(10):
        until(lambda: True)
        session.step()
    assert len(policy.received) <= count + 1, "one command may have been under way"
    session.close()
