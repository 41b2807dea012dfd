"""A policy node in a program of somebody else, on an executor that it shares."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from failing_robot import Spinning
from lifecycle_msgs.msg import Transition
from rclpy.node import Node
from rclpy.parameter import Parameter

from ttm_policy.policy_node import PolicyNode

Robot = Any


def test_a_policy_shares_an_executor_with_another_node(
    robot: Robot, checkpoint: Path, contract_file: Path
) -> None:
    values = {
        "checkpoint": str(checkpoint),
        "contract": str(contract_file),
        "engine": "torch",
        "instruction": "pick up the red can",
        "use_sim_time": True,
    }
    given = [Parameter(name, value=value) for name, value in values.items()]
    gc.unfreeze()  # what conftest.py has frozen
    policy, other = PolicyNode(parameter_overrides=given), Node("other")
    turns: list[None] = []
    other.create_timer(0.05, lambda: turns.append(None))
    spinning = Spinning(policy, other)
    assert robot.transition(Transition.TRANSITION_CONFIGURE)
    # A collection holds every thread, also that of the emergency stop, for 1 ms per 1,400 objects.
    assert len(gc.get_objects()) < 30_000
    assert robot.transition(Transition.TRANSITION_ACTIVATE)
    robot.wait_for_motion()
    spinning.end()
    policy.close()
    robot.wait(lambda: robot.stands, "zero")
    assert turns
    for node in (policy, other):
        node.destroy_node()
