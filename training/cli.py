"""The `ttm` command: the table of its sub-commands, and the exit codes.

Each command is a frozen dataclass of options with a method `run` that returns the exit code. Its
module is imported when the command is chosen, so that `ttm --help` is quick. A new command is such a
dataclass, in the file of what it runs, and one line in `COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol, Union

import tyro
from tyro.conf import OmitSubcommandPrefixes, arg, subcommand

from ttm.policy.errors import UserError, printable
from ttm.policy.files import require_writable
from ttm.training.help_texts import join_help_lines


class Command(Protocol):
    """A command with its options."""

    def run(self) -> int:
        """Do the work; return the exit code."""


COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "collect": (
            "ttm.sim.collect:CollectCommand",
            "Record scripted demonstrations in the simulated kitchen, or in another environment.",
        ),
        "data show": (
            "ttm.datasets.tools.show:DataShowCommand",
            "Show what is in a data set: episodes, steps, rate, cameras, ranges, instructions, success.",
        ),
        "data play": (
            "ttm.training.robot.tools:PlayCommand",
            "Write an episode as a film in real time: its cameras, and below them what it did and felt.",
        ),
        "data check": (
            "ttm.datasets.tools.check:DataCheckCommand",
            "Check every episode of a data set, and name each fault with its file, demo, tick and remedy.",
        ),
        "data convert": (
            "ttm.training.robot.tools:ConvertCommand",
            "Convert a data set from another project's format to ours, or from ours to another project's.",
        ),
        "data bags": (
            "ttm.training.robot.tools:DataBagsCommand",
            "Convert recorded bags (rosbag2, sqlite3 or MCAP) to episodes, or back, by the robot's contract.",
        ),
        "data merge": (
            "ttm.datasets.tools.arrange:DataMergeCommand",
            "Merge data sets of one robot into one HDF5 file.",
        ),
        "data split": (
            "ttm.datasets.tools.arrange:DataSplitCommand",
            "Split a data set into several HDF5 files in one folder.",
        ),
        "data filter": (
            "ttm.datasets.tools.arrange:DataFilterCommand",
            "Write those episodes of a data set that are wanted to one HDF5 file.",
        ),
        "data pack": (
            "ttm.datasets.tools.pack:DataPackCommand",
            "Write a data set once more, with its frames decoded, at the size of a training, in a few files.",
        ),
        "data trim": (
            "ttm.datasets.tools.edit:DataTrimCommand",
            "Cut off the start or the end of a recorded episode.",
        ),
        "data label": (
            "ttm.datasets.tools.edit:DataLabelCommand",
            "Write instruction, success or task into recorded episodes.",
        ),
        "data delete": (
            "ttm.datasets.tools.edit:DataDeleteCommand",
            "Delete recorded episodes. Damaged files can be deleted too.",
        ),
        "data undo": (
            "ttm.datasets.tools.edit:DataUndoCommand",
            "Take back the newest of the edits by trim, label and delete, or by the recorder's undo.",
        ),
        "train": (
            "ttm.training.train:TrainCommand",
            "Train a policy on demonstrations, or fine-tune one with --init.",
        ),
        "evaluate": (
            "ttm.sim.evaluation:EvaluateCommand",
            "Measure how often a policy succeeds in the simulated kitchen, or in another environment.",
        ),
        "compare": (
            "ttm.sim.compare:CompareCommand",
            "Compare any number of evaluations: rates with intervals, paired tests, and one page.",
        ),
        "record": (
            "ttm.training.robot.record:RecordCommand",
            "Record episodes from a robot's topics while somebody drives it.",
        ),
        "robot": (
            "ttm.training.robot.robot:RobotCommand",
            "Drive a robot with a policy over ROS 2, keeping its memory from tick to tick.",
        ),
        "contract": (
            "ttm.training.robot.tools:ContractCommand",
            "Check a robot's contract on the live graph, before a policy moves it (ttm contract check).",
        ),
        "demo": (
            "ttm.training.demo:DemoCommand",
            "Record demonstrations, train on them, evaluate before and after, drive over ROS 2.",
        ),
        "show": (
            "ttm.training.show_memory:ShowCommand",
            "Show what a policy's memory reads and writes over a recorded episode (ttm show memory).",
        ),
        "bench tick": (
            "ttm.training.bench.tick:BenchTickCommand",
            "Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.",
        ),
        "bench step": (
            "ttm.training.bench.step:BenchStepCommand",
            "Time a training step on whole episodes with frozen vision, part by part.",
        ),
        "bench flops": (
            "ttm.training.bench.flops:BenchFlopsCommand",
            "Count the operations of a step of every temporal core, beside tables 2 to 5 of the TTM paper.",
        ),
        "bench sequence": (
            "ttm.training.bench.sequence:BenchSequenceCommand",
            "Compare the cost of long sequences: TLB by chunk size, Hourglass by hierarchy.",
        ),
        "bench drift": (
            "ttm.training.bench.drift:BenchDriftCommand",
            "Measure whether a memory drifts in episodes that are much longer than those trained on.",
        ),
        "bench sim": (
            "ttm.training.bench.sim:BenchSimCommand",
            "Time the control ticks of the simulated kitchen on one core, by part.",
        ),
        "bench ros": (
            "ttm.training.bench.ros:BenchRosCommand",
            "Run the policy's node over ROS 2 at a steady rate, and measure how regular its ticks are.",
        ),
        "bench record": (
            "ttm.training.bench.record:BenchRecordCommand",
            "Record made-up cameras over ROS 2, and compare the episode with what they sent.",
        ),
        "bench faults": (
            "ttm.training.bench.faults:BenchFaultsCommand",
            "Break the sensors of a running policy every 20 seconds, and see that it never moves blindly.",
        ),
        "bench respawn": (
            "ttm.training.robot.respawn:BenchRespawnCommand",
            "Kill the policy's node once in each episode over ROS 2, and see whether it still succeeds.",
        ),
        "bench e-stop": (
            "ttm.training.bench.e_stop:BenchEStopCommand",
            "Press the emergency stop again and again, and time how long the robot waits for zero.",
        ),
        "bench loader": (
            "ttm.training.bench.loader:BenchLoaderCommand",
            "Time the batches of a training, with frames from memory and from files.",
        ),
        "study copy": (
            "ttm.training.study.copy:StudyCopyCommand",
            "Train memories to repeat ten digits after T ticks of nothing (the TLB paper's copying task).",
        ),
        "study chunks": (
            "ttm.training.study.chunks:StudyChunksCommand",
            "Train memories to predict the next symbol of chunks L#L (the Hourglass paper's appendix A.1).",
        ),
        "study listops": (
            "ttm.training.study.listops:StudyListopsCommand",
            "Train memories to predict the value of ListOps expressions, scaled down.",
        ),
        "study babyai": (
            "ttm.training.study.babyai:StudyBabyaiCommand",
            "Clone the bot of a BabyAI level with every core, and count successes in new episodes.",
        ),
        "study memory": (
            "ttm.training.study.memory:StudyMemoryCommand",
            "Clone an expert of MiniGrid's Memory levels with every core, and count right choices.",
        ),
        "study memory-start": (
            "ttm.training.study.memory_start:StudyMemoryStartCommand",
            "Compare the ways of `ttm train --memory` by how well the memory holds over 300 ticks.",
        ),
        "study suite": (
            "ttm.training.study.suite:StudySuiteCommand",
            "Train policies that differ in their core alone on memory tasks, and compare their choices.",
        ),
    }
)
"""Name -> where its class is, as "module:Class", and what the list of commands says of it."""

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "data": "Look at episodes, check, convert and change them, or put them into other files.",
        "bench": "Measure time, operations, and the drift of memories.",
        "study": "Compare memories by experiments of the papers, and ways to train them.",
    }
)
"""First word of several commands -> what they are for."""

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

WRITTEN = ("out", "target", "json", "plot", "sheet", "video")
"""The fields of commands that say where to write."""
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
        options = import_module("ttm.training.options")
        words[1:] = options.with_config_file(words[1:], options.OPTION_NAMES)
    command: Command = tyro.cli(
        _choice("", words),
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
            option = getattr(command, "written_as", f"--{name}")
            folder = name == "out" and not getattr(command, "writes_file", False)
            require_writable(path, option, folder=folder)


def _choice(group: str, words: Sequence[str]) -> Any:
    """Return the type from which tyro makes one sub-command for each command of a group.

    words: what the command line goes on with. The command that it names is imported and explains
    itself; of the others, the list shows one sentence. A script for the completion of a shell has all.
    """
    every = any(word.startswith("--tyro-") for word in words)
    found: dict[str, Any] = {}
    for name, (where, help_text) in COMMANDS.items():
        first, _, rest = name.removeprefix(group).lstrip().partition(" ")
        if not name.startswith(group) or first in found:
            continue
        chosen = every or first in words[:1]
        if rest:
            found[first] = Annotated[
                _group(first, words if every else words[1:]), subcommand(first)
            ]
        elif chosen:
            found[first] = Annotated[join_help_lines(_load(where)), subcommand(first)]
        else:
            found[first] = Annotated[_NotChosen, subcommand(first, description=help_text)]
    return Union[tuple(found.values())]  # noqa: UP007 (the operator | takes no list)


@dataclass(frozen=True)
class _NotChosen:
    """Stands for a command in a list."""


def _group(name: str, words: Sequence[str]) -> type[Any]:
    """Return a command that runs the one of the group that was chosen."""
    names = ", ".join(key.partition(" ")[2] for key in COMMANDS if key.startswith(f"{name} "))
    return make_dataclass(
        f"{name.title()}Command",
        [("command", Annotated[_choice(f"{name} ", words), arg(name="")])],
        namespace={
            "__doc__": f"{GROUPS[name].rstrip('.')}: {names}.",
            "run": lambda self: self.command.run(),
        },
        frozen=True,
    )


def _load(where: str) -> type[Any]:
    module, _, name = where.partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


def _one_line(error: UserError) -> str:
    """Return the message in one line; messages that errors quote may have several."""
    return printable(error)


if __name__ == "__main__":
    sys.exit(main())
