"""The options of `ttm contract check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class ContractCommand:
    """Check a robot's contract on the live graph, before a policy moves it (ttm contract check).

    First the file itself is read, and a mistake in it is told in one line. Then the command listens to
    the robot for --seconds and prints a line for each topic: whether it is there with the right type,
    how often it comes, how old its stamps are, whether its fields, joints and frames are those of the
    contract, and who listens to the commands. Nothing is sent. The exit code is 0 if all topics fit, 1
    if not, and 2 for a mistake in the file. Needs ROS 2, from pip or installed.

    For example:
      ttm contract check my_robot.yaml
      ttm contract check my_robot.yaml --checkpoint runs/mine/best.safetensors --seconds 10
    """

    what: Annotated[Literal["check"], Positional]
    """What to do."""
    contract: Annotated[Positional[Path], arg(metavar="FILE")]
    """The contract's YAML file."""

    checkpoint: Path | None = None
    """Also compare with this policy: names, sizes, and whether the inputs are as quick as its ticks."""

    seconds: float = 5.0
    """How long to listen."""

    max_age_s: float = 0.5
    """The largest accepted age of an observation, as given to policy_node."""

    namespace: str = ""
    """The namespace of the robot's topics."""

    use_sim_time: bool = False
    """Compare stamps with /clock, for a simulator."""

    def run(self) -> int:
        """Check in a process of the ROS package; return its exit code."""
        from ttm.training.robot.contract.check import run_check

        return run_check(
            {
                "contract": str(self.contract),
                "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
                "seconds": self.seconds,
                "max_age_s": self.max_age_s,
                "namespace": self.namespace,
                "use_sim_time": self.use_sim_time,
            }
        )
