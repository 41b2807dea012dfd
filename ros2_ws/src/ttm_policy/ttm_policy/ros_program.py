"""The frame of the programs of this package: it starts ROS, tells mistakes, and makes the exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import rclpy
from rclpy.signals import SignalHandlerOptions

from ttm.policy.errors import UserError


def run_for_ttm(run: Callable[[], int]) -> int:
    """Run a program that `ttm` has started, and return its exit code.

    That is 2 if `run` raised a `UserError`, which is told in one line, or 130 after Ctrl-C, which `ttm` gets,
    too, and tells.
    """
    try:
        return run()
    except UserError as error:
        print(f"ttm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run_with_ros(name: str, run: Callable[[], int]) -> int:
    """Start ROS without its signal handlers, run the program called `name`, and end ROS.

    Returns the exit code: that of `run`, 2 if it raised a `UserError`, which is told in one line, or 1
    if it failed otherwise.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        return run()
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        rclpy.try_shutdown()
