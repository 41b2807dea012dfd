"""The options of `ttm record`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.training.robot.options import (
    check_options,
    parameter_options,
    read_options,
    require_contract,
    require_started,
)
from ttm.training.robot.record.nodes import Nodes
from ttm_policy.parameters import (
    NodeParameters,
    RecorderParameters,
    TeleopDevice,
    TeleopParameters,
    WebParameters,
)

OPTIONAL: Mapping[type[NodeParameters], str] = {
    WebParameters: "the web page; add --web",
    TeleopParameters: "the keys or the gamepad that drive; add --teleop",
}
"""Parameters of nodes that need not be started -> the node, and the option that starts it."""


@dataclass(frozen=True)
class _CommandOptions:
    """The options that are no parameters of the nodes."""

    sim: bool = False
    """Start the simulated robot too, and without --teleop the web page to drive it by; with --teleop, --web
    shows what its cameras see. After each episode it is in another initial state, none of which
    `ttm evaluate` uses by itself."""
    teleop: TeleopDevice | None = None
    """Start teleop_node too, by which a person drives the robot: by the keys of this terminal, by a gamepad
    of this computer or one whose state joy_node of ROS publishes, by the pose of a tracked hand, or by a
    leader arm."""
    web: bool = False
    """Serve a web page on this machine by which a person drives the robot and records."""
    checkpoint: Path | None = None
    """With --sim: let this policy drive, and take over from it by the page or by --teleop; `shipped` is the
    one that comes with the project. Each episode begins its scene anew, and has who drove."""
    task: str | None = None
    """With --sim: task of the simulated kitchen. By default the one of the instruction, or the first."""


_AllOptions: Any = make_dataclass(
    "_AllOptions",
    parameter_options(RecorderParameters, {"--teleop": TeleopParameters, "--web": WebParameters}),
    bases=(_CommandOptions,),
    frozen=True,
)


@dataclass(frozen=True)
class RecordCommand(_AllOptions):
    """Record episodes from a robot's topics while somebody drives it.

    The contract says which topics are what, as for ttm robot, so that a policy will see what is recorded.
    With --web, a page in the browser shows the cameras, drives, records, and lists what was recorded; its
    address is printed. With --teleop, keys, a gamepad, a hand or a leader arm drive. Otherwise the robot is
    driven by other means.
    In the terminal, space starts and stops an episode, f stops it as a failure, d discards it, u deletes
    the last one, and q or Ctrl-C ends the command. The services of recorder_node do the same.

    For example:
      ttm record --sim --out demos
      ttm record --sim --checkpoint runs/mine/best.safetensors --out corrections
      ttm record --contract my_robot.yaml --rate-hz 10 --web --out my_episodes
      ttm record --contract my_robot.yaml --rate-hz 10 --teleop gamepad --out my_episodes
      ttm record --contract my_robot.yaml --rate-hz 10 --teleop leader --controls leader.yaml --out taught
      ttm record --contract my_robot.yaml --spec runs/mine/best.safetensors --out more_episodes
    """

    def run(self) -> int:
        """Start the nodes, wait for their end, and return the exit code."""
        check_options(self, RecorderParameters, TeleopParameters, WebParameters)
        require_contract(self.contract)
        if self.task and not self.sim:
            raise UserError("--task is one of the simulated robot; add --sim")
        if self.checkpoint and not self.sim:
            raise UserError(
                "--checkpoint is a policy for the simulated robot; add --sim, or start it by ttm robot and "
                "give its node's name by --policy"
            )
        if self.checkpoint and self.policy:
            raise UserError("--checkpoint starts a policy; leave out --policy")
        nodes = self._nodes()
        started = [type(node) for node in (nodes.recorder, nodes.web, nodes.teleop) if node]
        require_started(self, started, OPTIONAL)
        from ttm.training.robot.record.record import record_episodes, record_simulation, with_policy

        if not self.sim:
            return record_episodes(nodes)
        if self.checkpoint:
            nodes = with_policy(nodes, str(self.checkpoint))
        return record_simulation(nodes, self.task or "")

    def _nodes(self) -> Nodes:
        """Return which nodes run, with their parameters."""
        recorder = read_options(self, RecorderParameters)
        web, teleop = None, None
        if self.teleop:
            name = "recorder_node" if self.teleop == "keyboard" else ""
            teleop = read_options(self, TeleopParameters, source=self.teleop, recorder=name)
        if self.web or self.checkpoint or (self.sim and not self.teleop):
            web = read_options(self, WebParameters, folder=recorder.folder)
        return Nodes(recorder, web, teleop)
