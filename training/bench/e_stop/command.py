"""`ttm bench e-stop`: how soon the robot is stopped, also while the language model loads."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.e_stop.options import EStopOptions
from ttm.training.robot.ros_install import require_rclpy


@dataclass(frozen=True)
class BenchEStopCommand(EStopOptions):
    """Press the emergency stop again and again, and time how long the robot waits for zero.

    The policy's node runs in real time beside a made-up robot. The button is pressed while the policy
    drives, and while an instruction that nobody has given before is prepared by the language model. The
    exit code is 1 if an answer to the latter, or the diagnostics meanwhile, came late. Run it while nothing
    else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()
        from ttm.training.bench.e_stop.bench import run_bench

        return run_bench(self)
