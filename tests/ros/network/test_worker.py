"""The thread of the network: order, results, errors, and a node that stays free meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not here")

import rclpy
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node

from ttm_policy.inference import Worker

WAIT_S = 60.0


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    made = Node("test_worker")
    yield made
    made.destroy_node()
    rclpy.shutdown()


def _spin_until(node: Node, done: object) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        rclpy.spin_once(node, timeout_sec=0.05)


def test_calls_run_in_order_on_one_thread_and_results_come_to_the_node(node: Node) -> None:
    worker, ran, got = Worker(node, "network"), [], []
    idle: list[int] = []
    worker.on_idle = lambda: idle.append(len(got))

    def call(index: int) -> int:
        ran.append((index, threading.current_thread().name))
        return index

    for index in range(20):
        worker.submit(
            lambda index=index: call(index),
            lambda future: got.append((future.result(), threading.current_thread().name)),
        )
    assert not worker.idle
    _spin_until(node, lambda: worker.idle)
    assert ran == [(index, "network") for index in range(20)]
    assert got == [(index, "MainThread") for index in range(20)]
    assert idle[-1] == 20
    assert worker.close(WAIT_S)


def test_the_node_is_free_while_a_call_takes_long(node: Node) -> None:
    worker, release, beats = Worker(node, "network"), threading.Event(), []
    node.create_timer(0.01, lambda: beats.append(1), clock=Clock(clock_type=ClockType.STEADY_TIME))
    worker.submit(lambda: release.wait(WAIT_S))
    _spin_until(node, lambda: len(beats) >= 5)
    assert not worker.idle
    release.set()
    _spin_until(node, lambda: worker.idle)
    assert worker.close(WAIT_S)


def test_a_result_comes_even_if_its_wake_up_is_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardCondition, "trigger", lambda self: None)
    worker, got = Worker(node, "network"), []
    worker.submit(lambda: 1, lambda future: got.append(future.result()))
    _spin_until(node, lambda: got == [1])
    assert worker.close(WAIT_S)


def test_an_error_is_raised_by_the_thread_that_spins(node: Node) -> None:
    worker = Worker(node, "network")
    worker.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        _spin_until(node, lambda: False)
    assert worker.close(WAIT_S)


def test_closing_drops_what_waits_and_does_not_wait_for_what_runs(node: Node) -> None:
    worker, release, begun, ran = Worker(node, "network"), threading.Event(), threading.Event(), []
    worker.submit(lambda: (begun.set(), release.wait(WAIT_S)))
    worker.submit(lambda: ran.append(1))
    assert begun.wait(WAIT_S)
    assert not worker.close(timeout_s=0.01)
    release.set()
    assert worker.close(WAIT_S)
    assert not ran


def test_closing_while_the_thread_takes_the_last_call_comes_to_an_end(node: Node) -> None:
    class TakenMeanwhile(queue.SimpleQueue):  # type: ignore[type-arg]
        """A queue whose calls are taken by the thread right after somebody has seen them."""

        def empty(self) -> bool:
            return False

    worker = Worker(node, "network")
    assert worker.close(WAIT_S)
    worker._calls = TakenMeanwhile()
    closing = threading.Thread(target=worker.close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
