"""`ttm bench record`: whether the recorder keeps every frame that reaches it, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.record.options import BenchRecordOptions
from ttm.training.robot.ros_install import require_rclpy


@dataclass(frozen=True)
class BenchRecordCommand(BenchRecordOptions):
    """Record made-up cameras over ROS 2, and compare the episode with what they sent.

    Every frame carries a number. Told are the frames that were sent, those that never reached the
    recorder, those that it received and lost, and its processor time, from which follows how many frames
    a second one core can record.

    With --kills or --fill, it tells instead what is left after the recorder was killed, or the disk was
    full: damaged files, and episodes that the recorder had said to be saved and are gone, are lost.

    For example:
      ttm bench record --kills 50 --width 320 --height 240
      ttm bench record --fill --out /mnt/small_disk --jpeg-quality 0
    """

    def run(self) -> int:
        """Measure and print; return the exit code: 1 if the recorder lost anything."""
        self.check()
        require_rclpy()
        from ttm.training.bench.record.bench import run_bench

        return run_bench(self)
