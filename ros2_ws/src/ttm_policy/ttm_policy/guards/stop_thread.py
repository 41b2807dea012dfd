"""A thread that stops the robot, whatever the thread of the node is held by."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

SWITCH_INTERVAL_S = 0.001
"""How long one Python thread may keep the others waiting. Python's own 5 ms add up to more than the 20 ms
in which the robot is to be stopped, since the thread waits for its turn several times."""


class StopThread:
    """Hears the emergency stop, and sends zero, on a thread of its own.

    `node` is a hidden node, whose subscriptions and timers this thread serves. Whoever sends what moves the
    robot does so with `lock`, and only while `stopped` is false: then zero is the last command of each
    stop, whichever thread sends it. A call into a C library that keeps Python's lock, such as the
    conversion of one message of 20 MB, holds this thread as well; nothing else does.
    """

    def __init__(self, owner: Node) -> None:
        """owner: the node whose topics and names these are."""
        self.owner = owner
        self.lock = threading.RLock()
        self.stopped = False
        """Whether nothing may move until the thread of `owner` has taken note. Guarded by `lock`."""
        self.on_stop: Callable[[], object] = lambda: None
        """Sends zero if the robot is this node's to move. It is called with `lock`, by this thread."""
        self.on_news: Callable[[], object] = lambda: None
        """Called by the thread of `owner` after `tell`."""
        # Names that begin with an underscore are hidden from `ros2 node list`. The names of topics are those
        # of `owner`, remapped by then.
        self.node = Node(
            f"_{owner.get_name()}_stop",
            context=owner.context,
            namespace=owner.get_namespace(),
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._error: Exception | None = None
        self._guard = owner.create_guard_condition(self._deliver)
        self._executor, self._ended = SingleThreadedExecutor(context=owner.context), False
        self._executor.add_node(self.node)
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        self._thread = threading.Thread(target=self._run, name="stop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the robot, unless it is stopped. Call this on this thread."""
        with self.lock:
            if not self.stopped:
                self.stopped = True
                self.on_stop()

    def tell(self) -> None:
        """Let the thread of `owner` call `on_news`."""
        self._guard.trigger()

    def close(self) -> None:
        """End the thread, and destroy its node with all that is on it."""
        self._ended = True
        self._executor.wake()
        self._thread.join()
        self._executor.shutdown()
        self.owner.destroy_guard_condition(self._guard)
        self.node.destroy_node()

    def _run(self) -> None:
        try:
            while not self._ended:
                self._executor.spin_once(timeout_sec=0.1)
        except ExternalShutdownException:
            pass
        except Exception as error:  # raised again by the thread of the node, which ends for it
            self._error = error
            self.tell()

    def _deliver(self) -> None:
        if self._error is not None:
            raise self._error
        self.on_news()
