"""Checks on the steady clock that the policy sees the robot as it is, and that it alone commands it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ttm_policy.guards.clock_watch import ClockWatch
from ttm_policy.guards.command_echo import CommandEcho


class Eyes(Protocol):
    """The inputs of the policy, as `ttm_policy.inputs.inputs.Inputs` offers them."""

    def require_trusted(self, now_ns: int, wall_s: float, max_age_s: float) -> None:
        """Raise `ObservationError` if an input is missing, silent or old."""


class Watchdog:
    """Calls `on_watch` twice in each period of the policy, whatever the clock of ROS does.

    It is also asked before each tick. Without `echo`, commands of others are not noticed.
    """

    def __init__(
        self,
        node: Node,
        eyes: Eyes,
        echo: CommandEcho | None,
        *,
        period_s: float,
        on_watch: Callable[[], None],
    ):
        self._node, self._eyes, self._echo = node, eyes, echo
        self._clock = ClockWatch()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(period_s / 2, on_watch, clock=steady)

    def require_sight(self, max_age_s: float) -> None:
        """Raise `ObservationError` if the policy must not move the robot now, with the reason."""
        now_ns, wall_s = self._node.get_clock().now().nanoseconds, time.monotonic()
        self._clock.require_running(now_ns, wall_s, max_age_s)
        self._eyes.require_trusted(now_ns, wall_s, max_age_s)
        if self._echo is not None:
            self._echo.require_alone(wall_s)

    def close(self) -> None:
        """End the checks."""
        self._node.destroy_timer(self._timer)
        if self._echo is not None:
            self._echo.close()
