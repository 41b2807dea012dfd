"""`ttm bench ros`: whether the policy's node keeps its rate for minutes, beside made-up sensors."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.ros.options import RosOptions
from ttm.training.robot.ros_install import require_rclpy


@dataclass(frozen=True)
class BenchRosCommand(RosOptions):
    """Run the policy's node over ROS 2 at a steady rate, and measure how regular its ticks are.

    Made-up sensors publish every input of the contract. Counted are the actions that arrive at
    another process: the periods between them, ticks that are late or too close, and how the
    node's memory grows. Nothing moves. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()
        from ttm.training.bench.ros.bench import run_bench

        run_bench(self)
        return 0
