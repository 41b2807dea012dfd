"""What the launch files start, and their arguments. Only launch files import this module.

It needs ROS's `launch` and `launch_ros`, which come with a ROS 2 install and not with the wheels of
`rclpy`.
"""

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown
from launch.events.process import ProcessExited
from launch.logging import get_logger, launch_config
from launch_ros.actions import Node

from ttm.policy.spec import checkpoint_path
from ttm.policy.errors import UserError
from ttm.sim.condition import PATIENT_MAX_AGE_S, next_seed
from ttm_policy.launching import (
    TOPICS,
    Given,
    LaunchParameters,
    RecordLaunchParameters,
    RobotLaunchParameters,
    check_name,
    read_values,
    require_sections,
    write_parameters,
)
from ttm_policy.parameters import (
    PARAMETERS,
    DeclaredParameter,
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    WebParameters,
    parameters_of,
    require_known,
)

POLICY_NODE, RECORDER_NODE, SIM_NODE = "policy_node", "recorder_node", "sim_node"
OPTIONAL: Mapping[str, str] = {
    "web_node": "the web page; add web:=true",
    "teleop_node": "the gamepad; add teleop:=true",
    SIM_NODE: "the simulated robot; add sim:=true",
}
"""Nodes that need not be started -> what they are, and the argument that starts them."""
RESPAWN_DELAY_S = 0.5
SIGTERM_AFTER_S, SIGKILL_AFTER_S = "2.5", "1"
"""Ctrl-C ends everything within 5 s: a node that does not end after SIGINT is sent these signals."""
_SIMULATED = ("/clock", "/tf", "/tf_static")
"""Topics that all nodes of a machine share, unless two simulated robots each have their own."""


def robot(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the policy for a robot, with `sim` also the simulated one."""
    launch = _Launch(given, RobotLaunchParameters)
    launch.check([POLICY_NODE, *([SIM_NODE] if launch.simulated else [])])
    shared: dict[str, Any] = {"lockstep": True} if launch.simulated else {}
    defaults = {**shared, "use_sim_time": launch.simulated}
    options: dict[str, Any] = {"respawn": False}
    if launch.own.get("respawn"):
        defaults["recovery_path"] = str(launch.file(f"{POLICY_NODE}_memory.npz"))
        options = {"respawn": True, "on_exit": _unless_respawned}
    policy = launch.node(POLICY_NODE, defaults, respawn_delay=RESPAWN_DELAY_S, **options)
    return [policy, *([launch.node(SIM_NODE, shared)] if launch.simulated else [])]


def simulator(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the simulated robot. The launch ends with its last episode."""
    launch = _Launch(given, LaunchParameters)
    launch.check([SIM_NODE])
    return [launch.node(SIM_NODE, {})]


def recorder(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the recorder, what drives, and with `sim` the simulated robot."""
    launch = _Launch(given, RecordLaunchParameters)
    own, simulated = launch.own, launch.simulated
    elsewhere = given[WebParameters].get("policy", "")
    checkpoint = _checkpoint(own, elsewhere)
    takes_over = {"policy": POLICY_NODE} if checkpoint else {}
    scenes = {"simulator": SIM_NODE} if simulated else {}
    shared: dict[str, Any] = {"use_sim_time": simulated}
    patient = shared | ({"max_age_s": PATIENT_MAX_AGE_S} if simulated else {})
    drivers: dict[str, dict[str, Any]] = {}
    if own.get("web", simulated and (bool(checkpoint) or not own.get("teleop"))):
        drivers["web_node"] = {**patient, **scenes, **takes_over}
    if own.get("teleop"):  # a launched node has no terminal, and so no keys
        drivers["teleop_node"] = {**patient, "source": "gamepad", **takes_over}
    others = [*([POLICY_NODE] if checkpoint else []), *([SIM_NODE] if simulated else [])]
    launch.check([RECORDER_NODE, *drivers, *others])

    prompt = {"countdown_s": 0.0, "spec": checkpoint} if checkpoint else {}
    from_scenes = scenes if checkpoint or elsewhere else {}
    actions = [launch.node(RECORDER_NODE, {**shared, **from_scenes, **prompt})]
    actions += [launch.node(name, defaults) for name, defaults in drivers.items()]
    if checkpoint:
        # What was given for those who drive, such as limits, holds for the policy, too.
        known = {parameter.name for parameter in parameters_of(PolicyParameters)}
        values = {name: value for name, value in given[WebParameters].items() if name in known}
        actions.append(launch.node(POLICY_NODE, {**patient, "checkpoint": checkpoint}, values))
    if simulated:
        folder = given[RecorderParameters].get("folder", RecorderParameters.folder)
        actions.append(launch.node(SIM_NODE, {"driver": "person", "first_seed": next_seed(folder)}))
    return actions


def _checkpoint(own: Mapping[str, Any], elsewhere: str) -> str:
    """Return the path of the policy that is to drive the simulated robot, or an empty text."""
    if not own.get("checkpoint"):
        return ""
    if not own.get("sim"):
        raise UserError("argument checkpoint is a policy for the simulated robot; add sim:=true")
    if elsewhere:
        raise UserError("argument checkpoint starts a policy; leave out policy")
    return str(checkpoint_path(own["checkpoint"]).resolve())


class _Launch:
    """The arguments that were given to a launch file, and the nodes that it starts with them."""

    def __init__(self, given: Given, kind: type[LaunchParameters]) -> None:
        """kind: the arguments that are no parameters of a node, which `own` then has."""
        self.given, self.own = given, given[kind]
        self.simulated = bool(self.own.get("sim", kind is LaunchParameters))

    def check(self, started: Sequence[str]) -> None:
        """Raise `UserError` for an argument of a node that is not started, or a wrong `params_file`."""
        kinds = [PARAMETERS[name] for name in started if PARAMETERS[name] in self.given]
        known = {parameter.name for kind in kinds for parameter in parameters_of(kind)}
        for name, remedy in OPTIONAL.items():
            for argument in self.given.get(PARAMETERS[name], {}):
                if argument not in known:
                    raise UserError(f"argument {argument} is one of {remedy}")
        if self.own.get("params_file"):
            namespace = self.own.get("namespace", "").strip("/")
            nodes = [f"/{namespace}/{name}".replace("//", "/") for name in started]
            require_sections(self.own["params_file"], nodes)

    def file(self, name: str) -> Path:
        """Return a path among this launch's log files, which no other launch and namespace shares."""
        namespace = str(self.own.get("namespace", "")).strip("/").split("/")
        return Path(launch_config.log_dir) / "_".join([*namespace, name]).lstrip("_")

    def node(
        self,
        name: str,
        defaults: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Node:
        """Return a node. A user's parameter file overrules `defaults`, and `given` overrules both."""
        own, values = self.own, dict(self.given[PARAMETERS[name]] if given is None else given)
        if "use_sim_time" in own and name != SIM_NODE:
            values["use_sim_time"] = own["use_sim_time"]
        namespace = check_name("namespace", own["namespace"]) if own.get("namespace") else ""
        parameters = []
        if defaults:
            parameters.append(write_parameters(self.file(f"{name}_defaults.yaml"), defaults))
        if own.get("params_file"):
            parameters.append(Path(own["params_file"]))
        if values:
            file = self.file(f"{name}_given.yaml")
            parameters.append(write_parameters(file, values, node=name))
        topics = [(TOPICS[name], check_name(name, own[name])) for name in TOPICS if name in own]
        if self.simulated and namespace:
            topics += [(topic, topic.lstrip("/")) for topic in _SIMULATED]
        end = {"on_exit": Shutdown(reason=f"{name} has ended")}
        return Node(
            package="ttm_policy",
            executable=name,
            name=name,
            namespace=namespace,
            output="screen",
            parameters=parameters,
            remappings=topics,
            sigterm_timeout=SIGTERM_AFTER_S,
            sigkill_timeout=SIGKILL_AFTER_S,
            **(end | options),
        )


def _unless_respawned(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """End the launch after an exit that is no crash: 0 follows a signal, 2 wrong parameters."""
    if event.returncode in (0, 2) and not context.is_shutdown:
        return Shutdown(reason="the policy has ended")
    return None


def launch_description(
    file: str,
    kinds: Sequence[type[NodeParameters]],
    start: Callable[[Given], list[LaunchDescriptionEntity]],
) -> LaunchDescription:
    """Return one argument for each parameter of `kinds`, and what `start` makes of those given.

    file: the name of the launch file, for messages. Arguments that were not given are left to the
    node and its parameter file. Wrong ones raise `UserError`, which `ros2 launch` prints in one line
    before anything is started.
    """
    declared: dict[str, list[DeclaredParameter]] = {}
    for parameter in (parameter for kind in kinds for parameter in parameters_of(kind)):
        declared.setdefault(parameter.name, []).append(parameter)
    given: dict[str, str] = {}

    def note_given(context: LaunchContext) -> None:
        given.update({n: t for n, t in context.launch_configurations.items() if n in declared})
        typed = [text.partition(":=")[0] for text in context.argv]
        for name in require_known("argument", typed, declared):
            get_logger().warning(f"{file} has no argument {name}; see --show-args")

    def begin(context: LaunchContext) -> list[LaunchDescriptionEntity]:
        # Left in place, the defaults would count as given in a second include of this file.
        for name in set(declared) - set(given):
            context.launch_configurations.pop(name, None)
        return start(read_values(kinds, given))

    arguments = [_argument(parameters) for parameters in declared.values()]
    return LaunchDescription(
        [OpaqueFunction(function=note_given), *arguments, OpaqueFunction(function=begin)]
    )


def _argument(parameters: Sequence[DeclaredParameter]) -> DeclareLaunchArgument:
    """Return the argument with its help, unit and range, of parameters that share its name."""
    first, about = parameters[0], parameters[0].about
    details = "; ".join(text for text in (about.unit, first.range_text) if text)
    texts = [about.help + (f" ({details})" if details else "")]
    texts += [
        f"With sim:=true: {p.about.help}" for p in parameters[1:] if p.about.help != about.help
    ]
    text = " ".join(texts)
    return DeclareLaunchArgument(first.name, default_value=first.default_text, description=text)
