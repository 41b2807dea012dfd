"""The `ttm` command: one dataclass for each sub-command, in the module that does the work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import OmitSubcommandPrefixes, arg, subcommand

# These modules import torch, MuJoCo and ROS only when they run, so that `ttm --help` is quick.
from ttm.datasets.check.command import DataCheckCommand
from ttm.datasets.show.command import DataShowCommand
from ttm.policy.errors import UserError
from ttm.sim.collection.collect import CollectCommand
from ttm.sim.evaluation.evaluate import EvaluateCommand
from ttm.training.bench.drift.command import BenchDriftCommand
from ttm.training.bench.flops.command import BenchFlopsCommand
from ttm.training.bench.sequence.command import BenchSequenceCommand
from ttm.training.bench.tick.command import BenchTickCommand
from ttm.training.cloning.command import TrainCommand
from ttm.training.demo.command import DemoCommand
from ttm.training.robot.command import RobotCommand
from ttm.training.show.command import ShowCommand
from ttm.training.study.babyai.command import StudyBabyaiCommand
from ttm.training.study.chunks.command import StudyChunksCommand
from ttm.training.study.copy.command import StudyCopyCommand
from ttm.training.study.listops.command import StudyListopsCommand

DESCRIPTION = """Train a policy with Token Turing Machine memory from teleoperated episodes, and run it.

The way from data to robot:
  ttm data show EPISODES                     what is in an HDF5 file, a folder or a glob
  ttm data check EPISODES                    every fault of every episode
  ttm train --data EPISODES --out runs/mine  behaviour cloning; writes runs/mine/best.safetensors
  ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval
  ttm robot --checkpoint runs/mine/best.safetensors --instruction "open the top drawer"
  ttm show memory --episode EPISODES         what the policy's memory attends to, as picture and video
  ttm bench tick                             how long a tick takes here; also flops, sequence, drift
  ttm study copy                             which memory can copy? also chunks, listops, babyai

Without a robot or data: ttm collect records demonstrations in a simulated kitchen, ttm evaluate and
ttm robot --sim run the policy that ships with the project, ttm demo does all of it in one go.
Each sub-command explains itself: ttm train --help
"""

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class DataCommand:
    """Look at episodes (show), or look for faults in them (check)."""

    command: Annotated[
        Annotated[DataShowCommand, subcommand("show")]
        | Annotated[DataCheckCommand, subcommand("check")],
        arg(name=""),
    ]

    def run(self) -> int:
        return self.command.run()


@dataclass(frozen=True)
class BenchCommand:
    """What a tick takes (tick), its operations beside the paper's (flops), what long sequences take (sequence).

    And whether a memory drifts over long episodes (drift).
    """

    command: Annotated[
        Annotated[BenchTickCommand, subcommand("tick")]
        | Annotated[BenchFlopsCommand, subcommand("flops")]
        | Annotated[BenchSequenceCommand, subcommand("sequence")]
        | Annotated[BenchDriftCommand, subcommand("drift")],
        arg(name=""),
    ]

    def run(self) -> int:
        return self.command.run()


@dataclass(frozen=True)
class StudyCommand:
    """Compare memories without a robot: the papers' own experiments (copy, chunks, listops, babyai), for every core."""

    command: Annotated[
        Annotated[StudyCopyCommand, subcommand("copy")]
        | Annotated[StudyChunksCommand, subcommand("chunks")]
        | Annotated[StudyListopsCommand, subcommand("listops")]
        | Annotated[StudyBabyaiCommand, subcommand("babyai")],
        arg(name=""),
    ]

    def run(self) -> int:
        return self.command.run()


Command = (
    Annotated[CollectCommand, subcommand("collect")]
    | Annotated[DataCommand, subcommand("data")]
    | Annotated[TrainCommand, subcommand("train")]
    | Annotated[EvaluateCommand, subcommand("evaluate")]
    | Annotated[RobotCommand, subcommand("robot")]
    | Annotated[DemoCommand, subcommand("demo")]
    | Annotated[ShowCommand, subcommand("show")]
    | Annotated[BenchCommand, subcommand("bench")]
    | Annotated[StudyCommand, subcommand("study")]
)


def parse(args: Sequence[str] | None = None) -> Command:
    """The sub-command that `args` (without `ttm` itself) ask for; tyro exits with 2 where they are wrong."""
    return tyro.cli(
        Command, prog="ttm", description=DESCRIPTION, args=args, config=(OmitSubcommandPrefixes,)
    )


def main(args: Sequence[str] | None = None) -> int:
    """Run one sub-command. Exit code 2 is a mistake that its one line says how to mend; 130 is Ctrl-C."""
    command = parse(args)
    try:
        return command.run()
    except UserError as error:
        print(f"ttm: error: {_one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("ttm: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _one_line(error: UserError) -> str:
    """Libraries' messages, which some errors quote, may run over several lines."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
