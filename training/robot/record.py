"""`ttm record`: run the recorder, and what a person drives by, until one of them ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError
from ttm.policy.spec import checkpoint_path
from ttm.sim.condition import KITCHEN, PATIENT_MAX_AGE_S, next_seed
from ttm.sim.environment import choose_task, inspect_env
from ttm.training.robot.processes import (
    LOOK_S,
    require_rclpy,
    running_nodes,
    simulation_environment,
)
from ttm.training.robot.robot import (
    check_options,
    options_class,
    read_options,
    require_contract,
    require_started,
)
from ttm_policy.parameters import (
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopDevice,
    TeleopParameters,
    WebParameters,
)

POLICY_NODE = "policy_node"
OPTIONAL: Mapping[type[NodeParameters], str] = {
    WebParameters: "the web page; add --web",
    TeleopParameters: "the keys or the gamepad that drive; add --teleop",
}
"""Parameters of nodes that need not be started -> the node, and the option that starts it."""


@dataclass(frozen=True)
class Nodes:
    """The parameters of the recorder, and of what a person drives by, None for what is not started."""

    recorder: RecorderParameters
    web: WebParameters | None
    teleop: TeleopParameters | None
    policy: PolicyParameters | None = None

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Return the name of each node -> its parameters. The recorder takes keys of a free terminal."""
        keys = sys.stdin.isatty() and not (self.teleop and self.teleop.source == "keyboard")
        if not sys.stdin.isatty() and self.web is None:
            print("no terminal for keys: call ~/start and ~/stop of recorder_node", flush=True)
        drivers: dict[str, Any] = {"web_node": self.web, "teleop_node": self.teleop}
        drivers["policy_node"] = self.policy
        found = {name: asdict(given) for name, given in drivers.items() if given is not None}
        return {**found, "recorder_node": asdict(replace(self.recorder, keys=keys))}


def with_policy(nodes: Nodes, checkpoint: str) -> Nodes:
    """Return the nodes with a policy of the simulated robot, in whose place the person drives.

    It is recorded from the start of a scene, without a countdown. Raises `UserError` if the checkpoint is
    for another robot.
    """
    path, web = checkpoint_path(checkpoint).resolve(), nodes.web
    assert web is not None
    trained, _ = load_checkpoint(path)
    facts = inspect_env(KITCHEN)
    trained.spec.require_compatible(facts.spec, theirs="the simulated robot", ours=str(path))
    names = ("contract", "cmd_vel_stamped", "e_stop_rearm", "e_stop_timeout_s")
    shared: dict[str, Any] = {**web.limits, **{name: getattr(web, name) for name in names}}
    policy = PolicyParameters(checkpoint=str(path), **shared)
    teleop = nodes.teleop and replace(nodes.teleop, policy=POLICY_NODE)
    recorder = replace(nodes.recorder, countdown_s=0.0, spec=nodes.recorder.spec or str(path))
    return Nodes(recorder, replace(web, policy=POLICY_NODE), teleop, policy)


def record_simulation(nodes: Nodes, task: str) -> int:
    """Run the simulated robot for a person as well; return the exit code."""
    if nodes.web is None:
        print("nothing shows the robot: add --web for a page that does", flush=True)
    tasks, recorder = inspect_env(KITCHEN).tasks, nodes.recorder
    sim = SimParameters(
        task=choose_task(KITCHEN, tasks, task, recorder.instruction, label="--task"),
        instruction=recorder.instruction,
        first_seed=next_seed(recorder.folder),
        driver="person",
        contract=recorder.contract,
        cmd_vel_stamped=recorder.cmd_vel_stamped,
    )
    parameters = nodes.parameters()
    beside_policy = any(values.get("policy") for values in parameters.values())
    for name, values in parameters.items():
        values["use_sim_time"] = True
        if "max_age_s" in values:
            values["max_age_s"] = max(values["max_age_s"], PATIENT_MAX_AGE_S)
        if name == "web_node" or (name == "recorder_node" and beside_policy):
            values["simulator"] = "sim_node"
    return _run({**parameters, "sim_node": asdict(sim)}, simulation_environment())


def _run(nodes: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]) -> int:
    """Return the exit code of the node that ends first."""
    with running_nodes(nodes, environment) as running:
        while True:
            for node in running.values():
                if (code := node.poll()) is not None:
                    return code
            time.sleep(LOOK_S)


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


_DRIVERS = {"--teleop": TeleopParameters, "--web": WebParameters}
_AllOptions: Any = options_class(_CommandOptions, RecorderParameters, _DRIVERS)


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
                "--checkpoint is for --sim; start a policy by ttm robot and give its node by --policy"
            )
        if self.checkpoint and self.policy:
            raise UserError("--checkpoint starts a policy; leave out --policy")
        nodes = self._nodes()
        started = [type(node) for node in (nodes.recorder, nodes.web, nodes.teleop) if node]
        require_started(self, started, OPTIONAL)
        require_rclpy()
        if not self.sim:
            return _run(nodes.parameters(), os.environ)
        if self.checkpoint:
            nodes = with_policy(nodes, str(self.checkpoint))
        return record_simulation(nodes, self.task or "")

    def _nodes(self) -> Nodes:
        recorder = read_options(self, RecorderParameters)
        web, teleop = None, None
        if self.teleop:
            name = "recorder_node" if self.teleop == "keyboard" else ""
            teleop = read_options(self, TeleopParameters, source=self.teleop, recorder=name)
        if self.web or self.checkpoint or (self.sim and not self.teleop):
            web = read_options(self, WebParameters, folder=recorder.folder)
        return Nodes(recorder, web, teleop)
