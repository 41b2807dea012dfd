"""What a person's controls know of the simulated robot, and a device that does what a test says."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import rclpy
from node_process import WAIT_S
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.source import Source, TeleopContext, Wish


def kitchen_context() -> TeleopContext:
    return TeleopContext(load_contract(), SPEC, TeleopParameters().limits)


class FakeSource(Source):
    """Wants what the test says; without a stamp, it was heard just now."""

    def __init__(self, name: str, timeout_s: float = 0.3) -> None:
        self.name, self.timeout_s = name, timeout_s
        self.wanted: np.ndarray | None = None
        self.stamp_s: float | None = None

    def touch(self, value: float, stamp_s: float) -> None:
        self.wanted, self.stamp_s = np.array([value], np.float32), stamp_s

    def ask_to_give_back(self) -> None:
        self._gives_back = True

    def wish(self, now_s: float) -> Wish | None:
        stamp_s = now_s if self.stamp_s is None else self.stamp_s
        return None if self.wanted is None else Wish(self.wanted, stamp_s)


class ServedNodes:
    """Nodes that one executor serves, as long as a test waits for something."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes, self._executor = nodes, SingleThreadedExecutor()
        for node in nodes:
            self._executor.add_node(node)

    def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s
            self._executor.spin_once(timeout_sec=0.01)

    def close(self) -> None:
        for node in self._nodes:
            node.destroy_node()
        rclpy.shutdown()
