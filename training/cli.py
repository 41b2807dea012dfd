"""The `ttm` command: the table of its sub-commands, and the exit codes.

Each command is a frozen dataclass of options with a method `run` that returns the exit code. The
modules imported here hold options only and import torch, MuJoCo and ROS when they run, so that `ttm
--help` is quick. A new command is its options file and one line in `COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol, Union

import tyro
from tyro.conf import OmitSubcommandPrefixes, arg, subcommand

from ttm.datasets.arrange.command import DataFilterCommand, DataMergeCommand, DataSplitCommand
from ttm.datasets.check.command import DataCheckCommand
from ttm.datasets.edit.command import (
    DataDeleteCommand,
    DataLabelCommand,
    DataTrimCommand,
    DataUndoCommand,
)
from ttm.datasets.pack.command import DataPackCommand
from ttm.datasets.show.command import DataShowCommand
from ttm.policy.errors import UserError, printable
from ttm.policy.files import require_writable
from ttm.sim.collection.command import CollectCommand
from ttm.sim.comparison.command import CompareCommand
from ttm.sim.evaluation.command import EvaluateCommand
from ttm.training.bench.drift.command import BenchDriftCommand
from ttm.training.bench.e_stop.command import BenchEStopCommand
from ttm.training.bench.faults.command import BenchFaultsCommand
from ttm.training.bench.flops.command import BenchFlopsCommand
from ttm.training.bench.loader.command import BenchLoaderCommand
from ttm.training.bench.opening.command import BenchOpeningCommand
from ttm.training.bench.record.command import BenchRecordCommand
from ttm.training.bench.ros.command import BenchRosCommand
from ttm.training.bench.sequence.command import BenchSequenceCommand
from ttm.training.bench.sim.command import BenchSimCommand
from ttm.training.bench.step.command import BenchStepCommand
from ttm.training.bench.tick.command import BenchTickCommand
from ttm.training.cloning.command import TrainCommand
from ttm.training.cloning.options import OPTION_NAMES
from ttm.training.cloning.settings.config_file import with_config_file
from ttm.training.common.help_texts import join_help_lines
from ttm.training.demo.command import DemoCommand
from ttm.training.robot.bags.command import DataBagsCommand
from ttm.training.robot.bags.convert_command import ConvertCommand
from ttm.training.robot.command import RobotCommand
from ttm.training.robot.contract.command import ContractCommand
from ttm.training.robot.record.command import RecordCommand
from ttm.training.robot.replay.command import PlayCommand
from ttm.training.robot.respawn.command import BenchRespawnCommand
from ttm.training.show.command import ShowCommand
from ttm.training.study.babyai.command import StudyBabyaiCommand
from ttm.training.study.chunks.command import StudyChunksCommand
from ttm.training.study.copy.command import StudyCopyCommand
from ttm.training.study.listops.command import StudyListopsCommand
from ttm.training.study.memory.command import StudyMemoryCommand
from ttm.training.study.memory_start.command import StudyMemoryStartCommand
from ttm.training.study.suite.command import StudySuiteCommand


class Command(Protocol):
    """A command with its options."""

    def run(self) -> int:
        """Do the work; return the exit code."""


@dataclass(frozen=True)
class Group:
    """Commands that share a first word, such as `ttm bench tick` and `ttm bench flops`."""

    help: str
    """What they are for; the help text adds their names."""
    commands: Mapping[str, type[Any]]


COMMANDS: Mapping[str, type[Any] | Group] = MappingProxyType(
    {
        "collect": CollectCommand,
        "data": Group(
            "Look at episodes, check, convert and change them, or put them into other files.",
            {
                "show": DataShowCommand,
                "play": PlayCommand,
                "check": DataCheckCommand,
                "convert": ConvertCommand,
                "bags": DataBagsCommand,
                "merge": DataMergeCommand,
                "split": DataSplitCommand,
                "filter": DataFilterCommand,
                "pack": DataPackCommand,
                "trim": DataTrimCommand,
                "label": DataLabelCommand,
                "delete": DataDeleteCommand,
                "undo": DataUndoCommand,
            },
        ),
        "train": TrainCommand,
        "evaluate": EvaluateCommand,
        "compare": CompareCommand,
        "record": RecordCommand,
        "robot": RobotCommand,
        "contract": ContractCommand,
        "demo": DemoCommand,
        "show": ShowCommand,
        "bench": Group(
            "Measure time, operations, and the drift of memories.",
            {
                "tick": BenchTickCommand,
                "step": BenchStepCommand,
                "flops": BenchFlopsCommand,
                "sequence": BenchSequenceCommand,
                "drift": BenchDriftCommand,
                "sim": BenchSimCommand,
                "ros": BenchRosCommand,
                "record": BenchRecordCommand,
                "faults": BenchFaultsCommand,
                "respawn": BenchRespawnCommand,
                "e-stop": BenchEStopCommand,
                "loader": BenchLoaderCommand,
                "opening": BenchOpeningCommand,
            },
        ),
        "study": Group(
            "Compare memories by experiments of the papers, and ways to train them.",
            {
                "copy": StudyCopyCommand,
                "chunks": StudyChunksCommand,
                "listops": StudyListopsCommand,
                "babyai": StudyBabyaiCommand,
                "memory": StudyMemoryCommand,
                "memory-start": StudyMemoryStartCommand,
                "suite": StudySuiteCommand,
            },
        ),
    }
)
"""Name -> command, or group of commands. The help texts are the docstrings of the commands."""

DESCRIPTION = """Train a policy with Token Turing Machine memory from teleoperated episodes, and run it.

The way from data to robot:
  ttm record --contract robot.yaml --rate-hz 10 --out EPISODES
  ttm data show EPISODES                     what is in an HDF5 file, a folder or a glob
  ttm data convert FROM TO                   LeRobot, ALOHA, zarr and others to our episodes, and back
  ttm data check EPISODES                    every fault of every episode
  ttm train --data EPISODES --out runs/mine  behaviour cloning; writes runs/mine/best.safetensors
  ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval
  ttm contract check my_robot.yaml           whether the robot's topics are those of its contract
  ttm robot --checkpoint runs/mine/best.safetensors --instruction "open the top drawer"
  ttm show memory --episode EPISODES         what the policy's memory attends to, as picture and video

Without a robot or data: ttm collect records demonstrations in a simulated kitchen, ttm evaluate and
ttm robot --sim run the policy that ships with the project, ttm demo does all of it in one go.
Each command explains itself: ttm train --help, ttm bench --help, ttm study copy --help
"""

WRITES_FILES = (DataMergeCommand, DataFilterCommand, PlayCommand)
"""Commands whose --out is a file; that of all others is a folder."""
WRITTEN = ("out", "target", "json", "plot", "sheet", "video")
"""The fields of commands that say where to write."""
TAKES_TO = (ConvertCommand, DataBagsCommand)
"""Commands that are told in a word of its own where to write."""
NO_SPACE = (ENOSPC, EDQUOT, EFBIG, EROFS)
"""Errors of a disk that takes no more, which are told in one line."""
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def parse(args: Sequence[str] | None = None) -> Command:
    """Return the command that `args` (without `ttm` itself) ask for.

    tyro exits with code 2 if they are wrong. Raises `UserError` if the file of --config is.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words[:1] == ["train"]:
        words[1:] = with_config_file(words[1:], OPTION_NAMES)
    command: Command = tyro.cli(
        _choice(COMMANDS, *words),
        prog="ttm",
        description=DESCRIPTION,
        args=words,
        config=(OmitSubcommandPrefixes,),
    )
    return command


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    The code is 2 after a `UserError`, whose message is printed in one line, and 130 after Ctrl-C.
    """
    try:
        command = parse(args)
        _require_written(command)
        return command.run()
    except UserError as error:
        print(f"ttm: error: {_one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        place = error.filename or "the disk"
        told = (
            f"cannot write {place} ({os.strerror(error.errno)}); make space, or give another place"
        )
        print(f"ttm: error: {told}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("ttm: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _require_written(command: Any) -> None:
    """Raise `UserError` if nothing can be written to --out, --json, …, before the command begins."""
    command = getattr(command, "command", command)  # of a group, the one that was chosen
    for name in WRITTEN:
        path = getattr(command, name, None)
        if isinstance(path, Path):
            option = "TO" if isinstance(command, TAKES_TO) else f"--{name}"
            folder = name == "out" and not isinstance(command, WRITES_FILES)
            require_writable(path, option, folder=folder)


def _choice(commands: Mapping[str, type[Any] | Group], *words: str) -> Any:
    """Return the type from which tyro makes one sub-command for each entry.

    words: what the command line goes on with. The command that it names keeps its whole docstring as
    help text; of the others, the list shows the first sentence.
    """
    return Union[  # noqa: UP007 (the operator | takes no list)
        tuple(
            Annotated[
                _group(name, entry, *words[1:])
                if isinstance(entry, Group)
                else join_help_lines(entry),
                subcommand(name, description=None if name in words[:1] else _summary(entry)),
            ]
            for name, entry in commands.items()
        )
    ]


def _summary(entry: type[Any] | Group) -> str:
    """Return the first paragraph of the help text, in one line."""
    if isinstance(entry, Group):
        return f"{entry.help.rstrip('.')}: {', '.join(entry.commands)}."
    return " ".join((entry.__doc__ or "").strip().split("\n\n")[0].split())


def _group(name: str, group: Group, *words: str) -> type[Any]:
    """Return a command that runs the one of the group that was chosen."""
    return make_dataclass(
        f"{name.title()}Command",
        [("command", Annotated[_choice(group.commands, *words), arg(name="")])],
        namespace={"__doc__": _summary(group), "run": lambda self: self.command.run()},
        frozen=True,
    )


def _one_line(error: UserError) -> str:
    """Return the message in one line; messages that errors quote may have several."""
    return printable(error)


if __name__ == "__main__":
    sys.exit(main())
