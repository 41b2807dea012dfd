"""Commands about data and contracts of which a part needs the ROS package, as a process of its own.

`ttm data bags` and `play`, and `ttm contract check`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional, arg

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
                        f"--{name.replace('_', '-')} is for bags that are read; leave it out with --to {to}"
                    )
        if find_spec("rosbags") is None:
            raise UserError('rosbags is missing; run: pip install "ttm-policy-stack[convert]"')
        return run_program("bags.read" if to == "ttm" else "bags.write", given)


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
