"""`ttm demo`: from demonstrations to a closed loop over ROS 2, on the simulated robot."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.common.threads import wait_passively
from ttm.training.demo.options import DemoOptions


@dataclass(frozen=True)
class DemoCommand(DemoOptions):
    """Record demonstrations, fine-tune on them, evaluate before and after, drive over ROS 2.

    With its defaults it takes 3.6 minutes on two free cores. OUT/report.html shows what it found,
    with videos.

    Example: ttm demo --out demo_out
    """

    def run(self) -> int:
        """Run all steps; return the exit code."""
        self.check()
        wait_passively()
        from ttm.training.demo.demo import Demo

        return Demo(self).run()
