"""Nodes that are spun by a thread of their own."""

from __future__ import annotations

import threading

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class Spinning:
    """Spins nodes from now on until `end`.

    `Executor.shutdown` is no end of a thread in `Executor.spin`: it does not wait for it, and takes away the
    guard that would wake it, so that a thread which is just about to wait may wait for ever.
    """

    def __init__(self, *nodes: Node) -> None:
        self._executor, self._ended = SingleThreadedExecutor(), threading.Event()
        for node in nodes:
            self.add(node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def add(self, node: Node) -> None:
        """Spin one more node."""
        self._executor.add_node(node)

    def _spin(self) -> None:
        while not self._ended.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def end(self) -> None:
        """Return when the thread has ended. The nodes are the caller's to destroy."""
        self._ended.set()
        self._thread.join()
        self._executor.shutdown()
