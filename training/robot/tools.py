"""Commands about data and contracts of which a part needs the ROS package, as a process of its own.

`ttm data bags`, `convert` and `play`, and `ttm contract check`. Without their options for ROS, the
second and the third are the commands of `ttm.datasets.tools`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast, get_args

from tyro.conf import Positional, arg

from ttm.datasets.description import Choices
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.tools.convert import DataConvertCommand
from ttm.datasets.tools.play import DataPlayCommand
from ttm.policy.errors import UserError, require_above_0
from ttm.training.robot.processes import run_program
from ttm.training.robot.robot import require_contract

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

    written_as: ClassVar[str] = "TO"

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
        given = asdict(self)
        to, for_reading = given.pop("to"), ("rate_hz", "instruction", "spec")
        if to == "ttm":
            require_above_0({"--rate-hz": self.rate_hz})
        else:
            given = {"to": to, **given}
            for name in for_reading:
                if given.pop(name) is not None:
                    raise UserError(
                        f"--{name.replace('_', '-')} is for bags that are read, and episodes have their "
                        f"own; leave it out with --to {to}"
                    )
        if find_spec("rosbags") is None:
            raise UserError(
                "rosbags is missing, which reads and writes bags; "
                'run: pip install "ttm-policy-stack[convert]"'
            )
        return run_program("bags.read" if to == "ttm" else "bags.write", given)


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

    written_as: ClassVar[str] = "TO"

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
        given = self.options
        spec = given.choices.spec
        if given != ConvertOptions(given.rate_hz, given.instruction, choices=Choices(spec=spec)):
            raise UserError(
                "with --contract only --rate-hz, --instruction, --spec and --overwrite count; leave the "
                "others out"
            )
        return DataBagsCommand(
            Path(self.source),
            self.target,
            self.contract,
            to=cast(BagTarget, self.to),
            rate_hz=given.rate_hz,
            instruction=given.instruction,
            spec=spec,
            overwrite=self.overwrite,
        ).run()


@dataclass(frozen=True)
class ContractCommand:
    """Check a robot's contract on the live graph, before a policy moves it (ttm contract check).

    First the file itself is read. Then the command listens to the robot for --seconds and prints a line
    for each topic: whether it is there with the right type, how often it comes, how old its stamps are,
    whether its fields, joints and frames are those of the contract, and who listens to the commands.
    Nothing is sent. The exit code is 0 if all topics fit, 1 if not, and 2 for a mistake in the file. Needs
    ROS 2, from pip or installed.

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
        require_above_0({"--seconds": self.seconds, "--max-age-s": self.max_age_s})
        options = asdict(self)
        del options["what"]
        return run_program("live_check", options)


@dataclass(frozen=True)
class PlayCommand(DataPlayCommand):
    """Write an episode as a film in real time: its cameras, and below them what it did and felt.

    Each part of the action and each vector of proprioception has a chart over the ticks, in which a line
    marks the tick that is shown. A dashed line is what was executed in place of the action. With --topics,
    publish it as the messages of the recorded robot; this needs ROS 2, from pip or installed.

    For example:
      ttm data play my_episodes/episode_00003.hdf5
      ttm data play week.hdf5 --demo demo_12 --out demo_12.webp
      ttm data play my_episodes/episode_00003.hdf5 --topics --contract my_robot.yaml
    """

    writes_file: ClassVar[bool] = True

    topics: bool = False
    """Publish the observations, the instruction and /clock on the topics of --contract, at the stamps of
    the episode, instead of writing a film. Nothing is commanded."""
    contract: Path | None = None
    """With --topics, the YAML file of the robot's topics. None takes that of the simulated robot."""
    lockstep: bool = False
    """With --topics, empty the memory of policy_node, which must run with lockstep:=true, and publish
    each tick when the policy has answered the one before. At the end, print how many of its commands are
    the recorded actions, bit by bit. Otherwise ticks come at their own pace, whoever listens."""

    def run(self) -> int:
        """Write the film, or play the topics; return the exit code."""
        if not self.topics:
            if self.contract is not None or self.lockstep:
                raise UserError("--contract and --lockstep are for --topics; add it")
            return super().run()
        if self.out is not None:
            raise UserError("--topics writes no file; leave out --out")
        require_contract(self.contract)
        contract = "" if self.contract is None else str(self.contract)
        given = {"episode": str(self.episode), "demo": self.demo, "lockstep": self.lockstep}
        return run_program("replay", {**given, "contract": contract})
