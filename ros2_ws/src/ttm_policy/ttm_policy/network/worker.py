"""A thread of its own for what takes long: the network, the language model, files.

The thread that spins the node stays free for messages, timers and the emergency stop. Calls run one
after another in the order in which they were made, so that only one of them has the network at a time.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node

Result = TypeVar("Result")
Then = Callable[["Future[Any]"], object]


LOOK_S = 0.1
"""Time between two looks for results whose wake-up was lost, in seconds.

With Fast DDS a guard condition that is triggered just when a wait has ended may not end the next one: of
50,000 that met a busy spin, 5 were lost. In lockstep, where no timer ticks, the simulator would then wait for
ever.
"""


class Worker:
    """Runs calls on its thread, and hands their results to the thread that spins the node."""

    def __init__(self, node: Node, name: str) -> None:
        """Start the thread. name: of the thread, for debuggers and `top -H`."""
        self._node = node
        self.on_idle: Callable[[], object] = lambda: None
        """Called by the thread that spins the node when all results have been handed over."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any], Then] | None] = (
            queue.SimpleQueue()
        )
        self._finished: deque[tuple[Future[Any], Then]] = deque()
        self._pending = 0
        self._lock = threading.Lock()
        self._guard: GuardCondition | None = node.create_guard_condition(self.deliver)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(LOOK_S, self.deliver, clock=steady)
        # A daemon, since a process that is told to end does not wait for a language model.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the results of all calls have been handed over."""
        return self._pending == 0

    def submit(
        self, call: Callable[[], Result], then: Callable[[Future[Result]], object] = Future.result
    ) -> Future[Result]:
        """Run `call` after all earlier calls, and return its future.

        then: is called with the future by the thread that spins the node. By default an exception of
        `call` is raised there.
        """
        future: Future[Result] = Future()
        self._pending += 1
        self._calls.put((future, call, then))
        return future

    def deliver(self) -> None:
        """Hand over the results that are there. The thread that spins the node does so by itself."""
        delivered = False
        while self._finished:
            future, then = self._finished.popleft()
            self._pending -= 1
            delivered = True
            then(future)
        if delivered and self.idle:
            self.on_idle()

    def close(self, timeout_s: float = 0.5) -> bool:
        """Drop the calls that have not begun, and end the thread.

        Return whether it has ended within `timeout_s`. The results of dropped calls never come.
        """
        with suppress(queue.Empty):  # the thread may take a call at the same time
            while True:
                self._calls.get_nowait()
        self._calls.put(None)
        self._thread.join(timeout_s)
        with self._lock:
            if self._guard is not None:
                self._node.destroy_guard_condition(self._guard)
                self._node.destroy_timer(self._timer)
            self._guard = None
        self._finished.clear()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call, then = item
            try:
                future.set_result(call())
            except BaseException as error:  # raised again where the result is asked for
                future.set_exception(error)
            self._finished.append((future, then))
            with self._lock:
                if self._guard is not None:
                    self._guard.trigger()
