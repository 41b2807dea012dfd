"""`ttm bench faults`: a night of failing sensors, in an hour."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.faults.options import FaultsOptions
from ttm.training.robot.ros_install import require_rclpy


@dataclass(frozen=True)
class BenchFaultsCommand(FaultsOptions):
    """Break the sensors of a running policy every 20 seconds, and see that it never moves blindly.

    The policy's node runs in real time beside a made-up robot. Faults are drawn from the table of stamps,
    silence, clocks, second publishers, bad values and emergency stops. The exit code is 1 if the robot
    moved while the policy could not see it, if a fault was a dead end, or if the node's memory grew.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()
        from ttm.training.bench.faults.bench import run_bench

        return run_bench(self)
