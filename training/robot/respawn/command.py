"""`ttm bench respawn`: kill the policy once in each episode."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.robot.respawn.options import RespawnOptions
from ttm.training.robot.ros_install import require_rclpy


@dataclass(frozen=True)
class BenchRespawnCommand(RespawnOptions):
    """Kill the policy's node once in each episode over ROS 2, and see whether it still succeeds.

    The node is killed with SIGKILL at a tick drawn at random, is started again, and goes on with the memory
    that it had. The same initial states run without kills, too. Prints both success rates with their
    intervals. The exit code is 1 if the kills cost success (McNemar's exact test, p < 0.05).
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()
        from ttm.training.robot.respawn.bench import run_bench

        return run_bench(self)
