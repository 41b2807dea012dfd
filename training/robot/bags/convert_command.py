"""The options of `ttm data convert`, with that for bags, which need ROS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from ttm.datasets.convert.command import DataConvertCommand
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.observations.choices import Choices
from ttm.policy.errors import UserError
from ttm.training.robot.bags.command import BagTarget, DataBagsCommand


@dataclass(frozen=True)
class ConvertCommand(DataConvertCommand):
    """Convert a data set from another project's format to ours, or from ours to another project's.

    The format of FROM is recognised. Actions, frames, proprioception, instructions, the control
    rate, success and masks are converted; what is not is named. TO appears when all is written. The
    formats and what each of them keeps are in datasets/README.md. With --contract, FROM or TO are bags
    of ROS 2, as for ttm data bags; this needs ROS 2, from pip or installed.

    For example:
      ttm data convert lerobot_pusht demos
      ttm data convert demos demos_lerobot --to lerobot
      ttm data convert aloha_episodes demos --colour-order bgr
      ttm data convert recordings demos --contract my_robot.yaml --rate-hz 5 --instruction "wave"
      ttm data convert demos bags --contract my_robot.yaml --to mcap
    """

    contract: Path | None = None
    """For bags, the YAML file that says which topic supplies each observation and each part of the
    action. FROM is then a bag or a folder of bags, or with --to sqlite3 or mcap, TO is one."""

    def run(self) -> int:
        """Convert and print what was done; return the exit code."""
        targets = get_args(BagTarget)
        if self.contract is None:
            if self.to in targets and self.to != "ttm":
                raise UserError(
                    f"--to {self.to} writes bags; give the robot's topics by --contract"
                )
            return super().run()
        if self.to not in targets:
            raise UserError(
                f"--contract is for bags, which become ttm, and --to is {self.to}; give one of "
                f"{', '.join(targets)}, or leave --contract out"
            )
        self._refuse_unheeded()
        return self._bags(self.contract).run()

    def _bags(self, contract: Path) -> DataBagsCommand:
        given = self.options
        return DataBagsCommand(
            Path(self.source),
            self.target,
            contract,
            cast(BagTarget, self.to),
            given.rate_hz,
            given.instruction,
            given.choices.spec,
            self.overwrite,
        )

    def _refuse_unheeded(self) -> None:
        """Raise `UserError` for choices that bags do not heed."""
        given = self.options
        heeded = ConvertOptions(
            given.rate_hz, given.instruction, choices=Choices(spec=given.choices.spec)
        )
        if given != heeded:
            raise UserError(
                "with --contract only --rate-hz, --instruction, --spec and --overwrite count; leave the "
                "others out"
            )
