"""A person takes over from a policy node, which a node of the test stands in for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from teleoperation import FakeSource

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, POLICY, TOPIC, from_message
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
        self.create_subscription(JointState, TOPIC, self._receive, COMMAND)
        self.create_service(Trigger, "~/give_back", self._give_back)
        self.given_back = 0

    def _receive(self, message: JointState) -> None:
        self.received.append(from_message(SPEC, message))
        self._driver.publish(String(data=PERSON))

    def _give_back(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.given_back += 1
        self._driver.publish(String(data=POLICY))
        return response


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Policy, Callable[[Callable[[], bool]], None]]]:
    rclpy.init()
    person, policy = Node("teleop"), Policy()
    executor = SingleThreadedExecutor()
    executor.add_node(person)
    executor.add_node(policy)

    def until(done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 180
        while not done():
            assert time.monotonic() < deadline_s
            executor.spin_once(timeout_sec=0.02)

    yield person, policy, until
    person.destroy_node()
    policy.destroy_node()
    rclpy.shutdown()


def test_touching_takes_over_and_only_giving_back_lets_go(
    nodes: tuple[Node, Policy, Callable[[Callable[[], bool]], None]],
    context: TeleopContext,
    still: np.ndarray,
) -> None:
    node, policy, until = nodes
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
