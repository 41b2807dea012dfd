"""The options of `ttm data bags`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ttm.policy.errors import UserError

BagTarget = Literal["ttm", "sqlite3", "mcap"]


@dataclass(frozen=True)
class DataBagsCommand:
    """Convert recorded bags (rosbag2, sqlite3 or MCAP) to episodes, or back, by the robot's contract.

    To episodes, each bag becomes one episode. Its ticks follow each other at --rate-hz, by the stamps in the
    messages' headers. What is seen in a tick is the newest message of each topic until then; its
    action are the newest commands from then until the next tick. If there is none, parts that move
    the robot by velocity are zero, and others hold their last command.

    With --to sqlite3 or mcap, each episode becomes a bag: its observations at their capture times, its
    actions as commands, and its instruction on the topic `instruction`. Needs ROS 2, from pip or
    installed.

    For example:
      ttm data bags recordings demos --contract my_robot.yaml --rate-hz 5 --instruction "wave"
      ttm data bags demos bags --contract my_robot.yaml --to mcap
    """

    source: Annotated[Positional[Path], arg(metavar="FROM")]
    """A bag, or a folder of bags; a bag is a folder with metadata.yaml. With --to, episodes."""

    out: Annotated[Positional[Path], arg(metavar="TO")]
    """The folder to write."""

    contract: Path
    """The YAML file that says which topic supplies each observation and each part of the action."""

    to: BagTarget = "ttm"
    """What to write: episodes, or bags in one of the two storages of rosbag2."""

    rate_hz: float | None = None
    """The control rate of the bags, in ticks a second. None takes that of bags that were written by
    --to, or else that of the contract."""

    instruction: str | None = None
    """The instruction that the robot followed in all of the bags. None takes that on their topic
    `instruction`."""

    spec: Path | None = None
    """A YAML file with the parts of the action and their limits, and the labels of vectors, as `ttm
    data show --spec` writes it. A rate in it must be that of --rate-hz. None takes the spec of
    bags that were written by --to, or else one part for each entry of the contract."""

    overwrite: bool = False
    """Replace TO if it holds only what is written."""

    def run(self) -> int:
        """Convert in a process of the ROS package; return its exit code."""
        from ttm.training.robot.bags.bags import run_conversion, run_writing

        paths = {"source": self.source, "out": self.out, "contract": self.contract}
        options = {name: str(path) for name, path in paths.items()}
        if self.to != "ttm":
            self._refuse_unheeded()
            return run_writing({**options, "to": self.to, "overwrite": self.overwrite})
        return run_conversion(
            {
                **options,
                "rate_hz": self.rate_hz,
                "instruction": self.instruction,
                "spec": None if self.spec is None else str(self.spec),
                "overwrite": self.overwrite,
            }
        )

    def _refuse_unheeded(self) -> None:
        """Raise `UserError` if a choice was made that writing bags does not heed."""
        for name in ("rate_hz", "instruction", "spec"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"--{name.replace('_', '-')} is of bags that are read, and episodes have their own; "
                    f"leave it out with --to {self.to}"
                )
