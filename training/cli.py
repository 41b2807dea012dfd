"""The `ttm` command: the table of its sub-commands, and the exit codes.

Each command is a frozen dataclass of options with a method `run` that returns the exit code, in the file
of what it runs. A new command is such a dataclass, and one line in `COMMANDS`. Its module is imported when
the command is chosen; the list of commands shows the first paragraph of its docstring. A class that takes
its defaults from a file has a class method `defaults`, which gets the words of the command line.
"""

from __future__ import annotations

import ast
import os
import select
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, make_dataclass
from difflib import get_close_matches
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from tyro.conf import OmitSubcommandPrefixes, arg, subcommand

from ttm.policy.errors import UserError, printable, require_writable
from ttm.policy.extras import NAME, extra_with, install_command
from ttm.training.help_texts import HelpOutput, join_help_lines

COMMANDS = {
    "collect": "ttm.sim.collect:CollectCommand",
    "data show": "ttm.datasets.tools.show:DataShowCommand",
    "data play": "ttm.training.robot.tools:PlayCommand",
    "data check": "ttm.datasets.tools.check:DataCheckCommand",
    "data convert": "ttm.datasets.tools.convert:DataConvertCommand",
    "data bags": "ttm.training.robot.tools:DataBagsCommand",
    "data merge": "ttm.datasets.tools.arrange:DataMergeCommand",
    "data split": "ttm.datasets.tools.arrange:DataSplitCommand",
    "data filter": "ttm.datasets.tools.arrange:DataFilterCommand",
    "data pack": "ttm.datasets.tools.pack:DataPackCommand",
    "data trim": "ttm.datasets.tools.edit:DataTrimCommand",
    "data label": "ttm.datasets.tools.edit:DataLabelCommand",
    "data delete": "ttm.datasets.tools.edit:DataDeleteCommand",
    "data undo": "ttm.datasets.tools.edit:DataUndoCommand",
    "train": "ttm.training.train:TrainCommand",
    "evaluate": "ttm.sim.evaluation:EvaluateCommand",
    "compare": "ttm.sim.compare:CompareCommand",
    "serve": "ttm.sim.serve:ServeCommand",
    "record": "ttm.training.robot.record:RecordCommand",
    "robot": "ttm.training.robot.robot:RobotCommand",
    "contract": "ttm.training.robot.tools:ContractCommand",
    "export": "ttm.policy.export:ExportCommand",
    "demo": "ttm.training.demo:DemoCommand",
    "show": "ttm.training.show_memory:ShowCommand",
    "bench tick": "ttm.training.bench.tick:BenchTickCommand",
    "bench step": "ttm.training.bench.step:BenchStepCommand",
    "bench flops": "ttm.training.bench.flops:BenchFlopsCommand",
    "bench sim": "ttm.training.bench.sim:BenchSimCommand",
    "bench ros": "ttm.training.bench.ros:BenchRosCommand",
    "study minigrid": "ttm.training.study.minigrid_study:StudyMinigridCommand",
    "study suite": "ttm.training.study.suite:StudySuiteCommand",
    "study peers": "ttm.training.study.peers:StudyPeersCommand",
    "study pointing": "ttm.training.study.pointing:StudyPointingCommand",
    "study figure6": "ttm.training.study.figure6:StudyFigure6Command",
    "study seeds": "ttm.training.study.seeds:StudySeedsCommand",
    "study mikasa": "ttm.training.study.mikasa:StudyMikasaCommand",
}
"""Name -> where its class is, as "module:Class"."""

GROUPS = {
    "data": "Look at episodes, check, convert and change them, or put them into other files.",
    "bench": "Measure time, operations, and the drift of memories.",
    "study": "Compare memories by experiments of the papers, and ways to train them.",
}
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
  ttm export --checkpoint runs/mine/best.safetensors --out exported      ONNX, which needs no Python
  ttm show memory --episode EPISODES         what the policy's memory attends to, as picture and video

Without a robot or data: ttm collect records demonstrations in a simulated kitchen, ttm evaluate and
ttm robot --sim run the policy that ships with the project, ttm demo does all of it in one go.
Each command explains itself: ttm train --help, ttm bench --help, ttm study seeds --help.
ttm --version prints the version.
"""

TRAINS = ("train", "demo", "study suite", "study pointing", "study figure6", "study mikasa")
"""Commands that train, whose settings of PyTorch count when it is imported."""
WRITTEN = ("out", "target", "json", "plot", "sheet", "video")  # fields that say where to write
NO_SPACE = (ENOSPC, EDQUOT, EFBIG, EROFS)  # a disk takes no more, for which one line is enough
EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_NO_READER = 2, 130, 141


def parse(words: Sequence[str]) -> Any:
    """Return the command that `words` (without `ttm` itself) ask for: options, and a method `run`.

    tyro exits with code 2 if they are wrong. Raises `UserError` if the file of --config is.
    """
    output = HelpOutput(sys.stdout) if {"-h", "--help"} & {*words} else sys.stdout
    choice = _choice("", words)
    with redirect_stdout(output):
        return tyro.cli(
            choice, prog="ttm", description=DESCRIPTION, args=words, config=[OmitSubcommandPrefixes]
        )


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; return 2 after a `UserError`, 130 after Ctrl-C, 141 if nothing reads the output.

    The code of a process that a signal ended is the shell's, 128 and the signal's number.
    """
    try:
        try:
            code = _run(args)
        finally:
            sys.stdout.flush()
        return code if code >= 0 else 128 - code
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, select.POLLOUT)
        if not any(event & select.POLLERR for _, event in output.poll(0)):
            raise  # another pipe broke
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER


def _run(args: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if args is None else args)
    if words == ["--version"]:
        print(f"ttm {version(NAME)}")
        return 0
    try:
        command = parse(words)
        _require_written(command)
        return command.run()
    except UserError as error:
        print(f"ttm: error: {printable(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        problem = f"cannot write {error.filename or 'the disk'} ({os.strerror(error.errno)})"
        print(f"ttm: error: {problem}; make space, or give another place", file=sys.stderr)
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
            option = getattr(command, "written_as", "TO" if name == "target" else f"--{name}")
            folder = name == "out" and not getattr(command, "writes_file", False)
            require_writable(path, option, folder=folder)


def _choice(group: str, words: Sequence[str]) -> Any:
    """Return the type from which tyro makes one sub-command for each command of a group.

    words: what the command line goes on with. The command that it names is imported and explains
    itself; if it names none, a list shows a sentence of each. The completion of a shell needs all.
    """
    every = any(word.startswith("--tyro-") for word in words)
    named = words and any(f"{name} ".startswith(f"{group}{words[0]} ") for name in COMMANDS)
    found: dict[str, Any] = {}
    for name, where in COMMANDS.items():
        first, _, rest = name.removeprefix(group).lstrip().partition(" ")
        if not name.startswith(group) or first in found:
            continue
        if not every and first not in words[:1]:
            purpose = "" if named else _group(first, ()).__doc__ if rest else _summary(where)
            found[first] = Annotated[_NotChosen, subcommand(first, description=purpose)]
        elif rest:
            group_type = _group(first, words if every else words[1:])
            found[first] = Annotated[group_type, subcommand(first)]
        else:
            kind = join_help_lines(_load(name, where))  # type: ignore[arg-type]
            defaults = kind.defaults(words[1:]) if hasattr(kind, "defaults") else None
            given = {} if defaults is None else {"default": defaults}
            found[first] = Annotated[kind, subcommand(first, **given)]
    close = get_close_matches(words[0], found, n=1) if words and words[0] not in found else []
    if close and not every:
        raise UserError(
            f"there is no command ttm {group}{words[0]}; did you mean {group}{close[0]}?"
        )
    return Union[tuple(found.values())]  # noqa: UP007 (the operator | takes no list)


def _load(name: str, where: str) -> type[Any]:
    """Import the class of a command. Raises `UserError` if a package is missing that an extra brings."""
    if name in TRAINS:
        # Threads that wait and spin would take the core from those that prepare the next batch.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no hints to programmers
    module, _, class_name = where.partition(":")
    try:
        found: type[Any] = getattr(import_module(module), class_name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if (extra := extra_with(missing)) is None:
            raise
        raise UserError(f"ttm {name} needs {missing}; run: {install_command(extra)}") from error
    return found


@dataclass(frozen=True)
class _NotChosen:
    """Stands for a command in a list."""


def _summary(where: str) -> str:
    """Return the first paragraph of a command's docstring, without importing its module."""
    module, _, name = where.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return " ".join((ast.get_docstring(kind) or "").partition("\n\n")[0].split())


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


if __name__ == "__main__":
    sys.exit(main())
