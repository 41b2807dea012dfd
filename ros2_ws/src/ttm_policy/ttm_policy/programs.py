"""The frame of the programs of this package: it starts ROS, prints mistakes, and makes the exit code."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TypeVar

import rclpy
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.timer import Timer

from ttm.policy.errors import UserError

Options = TypeVar("Options")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Ctrl-C, an end by launch or systemd, a closed terminal, and Ctrl-\\."""
END_WITHIN_S = 1.8
"""The longest time from a signal to the end of a process that may move the robot, in seconds."""
STDERR, GRACE_S = 2, 0.5
LOOK_AFTER_S = 2.0
"""By then a node knows those that were there before it; those that come later warn themselves."""


def run_for_ttm(kind: Callable[..., Options], run: Callable[[Options], int], arguments: str) -> int:
    """Run a program that `ttm` has started with a JSON object of options, of the class `kind`.

    The exit code is that of `run`, 2 if it raised a `UserError`, which is printed in one line, or 130 after
    Ctrl-C, which `ttm` gets, too, and prints.
    """
    try:
        return run(kind(**json.loads(arguments)))
    except UserError as error:
        print(f"ttm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run_with_ros(name: str, run: Callable[[], int]) -> NoReturn:
    """Start ROS without its signal handlers, run the program called `name`, and end ROS and the process.

    The exit code is that of `run`, 2 for a `UserError`, which is printed in one line, or 1 for another error.
    `run` closes all that others rely on: an ordinary exit takes seconds with torch, and waits for a language
    model that is at work.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        code = run()
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        code = 2
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        rclpy.try_shutdown()
    for child in multiprocessing.active_children():
        child.terminate()
    with suppress(OSError):  # nobody reads it any more
        sys.stdout.flush()
    os._exit(code)


def spin(node: Node, until: Callable[[], bool], then: Callable[[], object] = lambda: None) -> None:
    """Serve a node until something is so; call `then` ten times a second or more often."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not until():
        executor.spin_once(timeout_sec=0.1)
        then()


def steady_timer(node: Node, period_s: float, callback: Callable[[], object]) -> Timer:
    """Return a timer on the steady clock: simulated time may stand still, or come in large steps."""
    return node.create_timer(period_s, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))


class StopSignals:
    """`requested` becomes True at the first of `SIGNALS`. The handlers of rclpy must be off."""

    def __init__(self, deadline_s: float | None = None) -> None:
        """deadline_s: end the process at the latest that long after the signal, with exit code 1; None for no
        limit. If something holds Python's lock, it ends `GRACE_S` later, with the tracebacks of its threads.
        """
        self.requested = False
        self._deadline_s = deadline_s
        for number in SIGNALS:
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if not self.requested and self._deadline_s is not None:
            faulthandler.dump_traceback_later(self._deadline_s + GRACE_S, exit=True, file=STDERR)
            timer = threading.Timer(self._deadline_s, self._end)
            timer.daemon = True
            timer.start()
        self.requested = True

    def _end(self) -> None:
        late = f"the process did not end by itself within {self._deadline_s} s of the signal\n"
        os.write(STDERR, late.encode())
        os._exit(1)


def warn_of_duplicates(node: Node) -> None:
    """Warn once, soon after the start, if another node has the name of this one, which ROS allows."""

    def look() -> None:
        timer.cancel()
        own = node.get_name(), node.get_namespace()
        if node.get_node_names_and_namespaces().count(own) > 1:
            node.get_logger().warning(
                f"another node of this ROS domain is called {node.get_fully_qualified_name()}, or one was "
                "killed within the last 20 s; end it, or start it in a namespace (-r __ns:=/left)"
            )

    timer = steady_timer(node, LOOK_AFTER_S, look)
