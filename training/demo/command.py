"""`ttm demo`: from demonstrations to a closed loop over ROS 2, on the simulated robot."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.common.threads import wait_passively
from ttm.training.demo.options import DemoOptions


@dataclass(frozen=True)
class DemoCommand(DemoOptions):
    """Record demonstrations, train on them, evaluate before and after, drive over ROS 2.

    The policy starts with the vision of the one that ships with the project. Its memory and its
    action head start from random weights and have to learn the tasks. Then the policy that ships
    does a memory task, live and with its memory erased. The demo takes less than 10 minutes on two
    free cores. OUT/report.html shows what it found, with videos.

    Example: ttm demo --out demo_out
    """

    def run(self) -> int:
        """Run all steps; return the exit code."""
        self.check()
        wait_passively()
        from ttm.training.demo.demo import Demo

        return Demo(self).run()
