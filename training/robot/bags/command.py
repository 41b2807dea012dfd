"""The options of `ttm data bags`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class DataBagsCommand:
    """Convert recorded bags (rosbag2, sqlite3 or MCAP) to episodes, by the robot's contract.

    Each bag becomes one episode. Its ticks follow each other at --rate-hz, by the stamps in the
    messages' headers. What is seen in a tick is the newest message of each topic until then; its
    action are the newest commands from then until the next tick. If there is none, parts that move
    the robot by velocity are zero, and others hold their last command. Needs ROS 2, from pip or
    installed.

    For example:
      ttm data bags recordings demos --contract my_robot.yaml --rate-hz 5 --instruction "wave"
    """

    source: Annotated[Positional[Path], arg(metavar="BAGS")]
    """A bag, or a folder of bags. A bag is a folder with metadata.yaml."""

    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """The folder to write."""

    contract: Path
    """The YAML file that says which topic supplies each observation and each part of the action."""

    rate_hz: float
    """The control rate, in ticks a second."""

    instruction: str
    """The instruction that the robot followed in all of the bags."""

    spec: Path | None = None
    """A YAML file with the parts of the action and their limits, and the labels of vectors, as `ttm
    data show --spec` writes it. A rate in it must be that of --rate-hz. None takes one part for each
    entry of the contract."""

    overwrite: bool = False
    """Replace OUT if it holds episodes only."""

    def run(self) -> int:
        """Convert in a process of the ROS package; return its exit code."""
        from ttm.training.robot.bags.bags import run_conversion

        paths = {"source": self.source, "out": self.out, "contract": self.contract}
        options = {name: str(path) for name, path in paths.items()}
        return run_conversion(
            {
                **options,
                "rate_hz": self.rate_hz,
                "instruction": self.instruction,
                "spec": None if self.spec is None else str(self.spec),
                "overwrite": self.overwrite,
            }
        )
