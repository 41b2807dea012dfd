"""The nodes that the launch files start. Only launch files import this module.

It needs ROS's `launch` and `launch_ros`, which come with a ROS 2 install and not with the wheels of
`rclpy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from launch import LaunchContext
from launch import LaunchDescriptionEntity
from launch.actions import Shutdown
from launch.events.process import ProcessExited
from launch.logging import launch_config
from launch_ros.actions import Node
from ttm.policy.errors import UserError
from ttm_policy.parameters import parameters_of
from ttm_policy.launching import TOPICS
from ttm_policy.launching import LaunchParameters
from ttm_policy.launching import RobotLaunchParameters
from ttm_policy.launching import require_sections
from ttm_policy.launching import write_defaults
from ttm_policy.launching import write_given
from ttm_policy.launching import check_name
from ttm_policy.parameters import NodeParameters
from ttm_policy.parameters import PolicyParameters
from ttm_policy.parameters import SimParameters
from collections.abc import Callable
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.actions import OpaqueFunction
from launch.logging import get_logger
from ttm_policy.parameters import DeclaredParameter
from ttm_policy.parameters import require_known
from ttm_policy.launching import read_values
from ttm.sim.condition import PATIENT_MAX_AGE_S
from ttm.sim.condition import next_seed
from ttm.sim.shipped import checkpoint_path
from ttm_policy.launching import RecordLaunchParameters
from ttm_policy.parameters import RecorderParameters
from ttm_policy.parameters import TeleopParameters
from ttm_policy.parameters import WebParameters


# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)


Given = Mapping[str, Mapping[str, Any]]
"""The arguments that were given, by the name of the class that declares them."""

RESPAWN_DELAY_S = 0.5
SIGTERM_AFTER_S, SIGKILL_AFTER_S = "2.5", "1"
"""Ctrl-C ends everything within 5 s: a node that does not end after SIGINT is sent these signals."""
_SIMULATED = ("/clock", "/tf", "/tf_static")
"""Topics that all nodes of a machine share, unless two simulated robots each have their own."""


def robot(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the policy for a robot, with `sim` also the simulated one."""
    own = given[RobotLaunchParameters.__name__]
    simulated = bool(own.get("sim"))
    kinds = (PolicyParameters, SimParameters) if simulated else (PolicyParameters,)
    require_started(given, kinds, {SimParameters: "the simulated robot; add sim:=true"})
    require_parameter_file(own, "policy_node", *(("sim_node",) if simulated else ()))
    shared = {"lockstep": True} if simulated else {}
    defaults: dict[str, Any] = {**shared, "use_sim_time": simulated}
    values = with_time(own, given[PolicyParameters.__name__])
    respawn = bool(own.get("respawn"))
    if respawn:
        defaults["recovery_path"] = str(_folder() / f"{_file_name(own, 'policy_node')}_memory.npz")
    policy = node_action(
        "policy_node",
        own,
        defaults,
        values,
        simulated=simulated,
        respawn=respawn,
        respawn_delay=RESPAWN_DELAY_S,
        on_exit=_unless_respawned if respawn else Shutdown(reason="the policy has ended"),
    )
    if not simulated:
        return [policy]
    return [policy, simulator_action(own, shared, given[SimParameters.__name__])]


def require_parameter_file(own: Mapping[str, Any], *names: str) -> None:
    """Raise `UserError` unless `params_file`, if it is given, has parameters for one of the nodes `names`."""
    if own.get("params_file"):
        namespace = own.get("namespace", "").strip("/")
        nodes = [f"/{namespace}/{name}".replace("//", "/") for name in names]
        require_sections(own["params_file"], nodes)


def simulator(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the simulated robot. The launch ends with its last episode."""
    own = given[LaunchParameters.__name__]
    require_parameter_file(own, "sim_node")
    return [simulator_action(own, {}, given[SimParameters.__name__])]


def simulator_action(
    own: Mapping[str, Any], defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> Node:
    """Return the simulated robot, with whose end the launch ends."""
    end = Shutdown(reason="the simulator has ended")
    return node_action("sim_node", own, defaults, values, simulated=True, on_exit=end)


def with_time(own: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were given for a node, with `use_sim_time` if that was given."""
    return (
        {**values, "use_sim_time": own["use_sim_time"]} if "use_sim_time" in own else dict(values)
    )


def node_action(
    name: str,
    own: Mapping[str, Any],
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    simulated: bool,
    **options: Any,
) -> Node:
    """Return a node of the package with its namespace, topics and parameters."""
    namespace = check_name("namespace", own["namespace"]) if own.get("namespace") else ""
    file = _file_name(own, name)
    parameters = [write_defaults(_folder() / f"{file}_defaults.yaml", defaults)] if defaults else []
    if own.get("params_file"):
        parameters.append(Path(own["params_file"]))
    if values:
        parameters.append(write_given(_folder() / f"{file}_given.yaml", name, values))
    return Node(
        package="ttm_policy",
        executable=name,
        name=name,
        namespace=namespace,
        output="screen",
        parameters=parameters,
        remappings=_remappings(own, apart=simulated and bool(namespace)),
        sigterm_timeout=SIGTERM_AFTER_S,
        sigkill_timeout=SIGKILL_AFTER_S,
        **options,
    )


def _remappings(own: Mapping[str, Any], *, apart: bool) -> list[tuple[str, str]]:
    """apart: whether clock and transforms are those of the namespace."""
    topics = [(topic, check_name(name, own[name])) for name, topic in TOPICS.items() if name in own]
    return topics + [(topic, topic.lstrip("/")) for topic in _SIMULATED if apart]


def _unless_respawned(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """End the launch after an exit that is no crash: 0 follows a signal, 2 wrong parameters."""
    if event.returncode in (0, 2) and not context.is_shutdown:
        return Shutdown(reason="the policy has ended")
    return None


def _folder() -> Path:
    """Return the folder of this launch's log files, which no other launch shares."""
    return Path(launch_config.log_dir)


def _file_name(own: Mapping[str, Any], node: str) -> str:
    return "_".join([*str(own.get("namespace", "")).strip("/").split("/"), node]).lstrip("_")


def require_started(
    given: Given,
    started: Sequence[type[NodeParameters]],
    others: Mapping[type[NodeParameters], str],
) -> None:
    """Raise `UserError` for an argument of a node that is not started.

    started: the parameters of the nodes that are. others: those of all that need not be -> their node,
    and what starts it.
    """
    known = {parameter.name for kind in started for parameter in parameters_of(kind)}
    for kind, remedy in others.items():
        for name in given[kind.__name__]:
            if name not in known:
                raise UserError(f"argument {name} is one of {remedy}")


# The arguments of a launch file and the action that reads them. Only launch files import this module.
#
# It needs ROS's `launch`, which comes with a ROS 2 install and not with the wheels of `rclpy`.

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)


Start = Callable[[Mapping[str, Mapping[str, Any]]], list[LaunchDescriptionEntity]]
"""Returns what to start. It gets the arguments that were given, by the class that declares them."""


def launch_description(
    file: str, kinds: Sequence[type[NodeParameters]], start: Start
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
    """Return the argument with its help, unit and accepted values, for `--show-args`.

    parameters: of this name; those of the policy stand before those of the simulated robot.
    """
    first, about = parameters[0], parameters[0].about
    details = "; ".join(text for text in (about.unit, first.range_text) if text)
    texts = [about.help + (f" ({details})" if details else "")]
    texts += [
        f"With sim:=true: {p.about.help}" for p in parameters[1:] if p.about.help != about.help
    ]
    return DeclareLaunchArgument(
        first.name, default_value=first.default_text, description=" ".join(texts)
    )


# The nodes that `record.launch.py` starts. Only that file imports this module; see `nodes`.

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)


OPTIONAL: Mapping[type[NodeParameters], str] = {
    WebParameters: "the web page; add web:=true",
    TeleopParameters: "the gamepad; add teleop:=true",
    SimParameters: "the simulated robot; add sim:=true",
}
"""Parameters of nodes that need not be started -> the node, and the argument that starts it."""
POLICY_NODE, RECORDER_NODE, SIM_NODE = "policy_node", "recorder_node", "sim_node"


def recorder(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the recorder, what drives, and with `sim` the simulated robot."""
    own = given[RecordLaunchParameters.__name__]
    simulated, checkpoint = bool(own.get("sim")), _checkpoint(given)
    drivers = _drivers(own, simulated=simulated, checkpoint=checkpoint)
    kinds = (RecorderParameters, *drivers, *((SimParameters,) if simulated else ()))
    require_started(given, kinds, OPTIONAL)
    others = [
        name for name, started in ((POLICY_NODE, checkpoint), (SIM_NODE, simulated)) if started
    ]
    require_parameter_file(own, RECORDER_NODE, *(name for name, _ in drivers.values()), *others)
    shared = {"use_sim_time": simulated}
    patience = {"max_age_s": PATIENT_MAX_AGE_S} if simulated else {}
    scenes = {"simulator": SIM_NODE} if simulated and (checkpoint or _policy(given)) else {}
    prompt = {"countdown_s": 0.0, "spec": checkpoint} if checkpoint else {}
    actions = [_node(RECORDER_NODE, RecorderParameters, given, {**shared, **scenes, **prompt})]
    for kind, (name, defaults) in drivers.items():
        actions.append(_node(name, kind, given, {**shared, **patience, **defaults}))
    if checkpoint:
        values = _shared_with_policy(given)
        defaults = {**shared, **patience, "checkpoint": checkpoint}
        actions.append(_ending(POLICY_NODE, own, defaults, values))
    if simulated:
        folder = given[RecorderParameters.__name__].get("folder", RecorderParameters.folder)
        person = {"driver": "person", "first_seed": next_seed(folder)}
        actions.append(simulator_action(own, person, given[SimParameters.__name__]))
    return actions


def _node(
    name: str, kind: type[NodeParameters], given: Given, defaults: Mapping[str, Any]
) -> LaunchDescriptionEntity:
    return _ending(name, given[RecordLaunchParameters.__name__], defaults, given[kind.__name__])


def _ending(
    name: str, own: Mapping[str, Any], defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> LaunchDescriptionEntity:
    """Return a node with whose end the launch ends. values: those that were given for it."""
    end, simulated = Shutdown(reason=f"{name} has ended"), bool(own.get("sim"))
    return node_action(
        name, own, defaults, with_time(own, values), simulated=simulated, on_exit=end
    )


def _drivers(
    own: Mapping[str, Any], *, simulated: bool, checkpoint: str
) -> dict[type[NodeParameters], tuple[str, dict[str, Any]]]:
    """Return the nodes by which a person drives, with their defaults, by their parameters."""
    teleop = bool(own.get("teleop"))
    policy = {"policy": POLICY_NODE} if checkpoint else {}
    drivers: dict[type[NodeParameters], tuple[str, dict[str, Any]]] = {}
    if own.get("web", simulated and (bool(checkpoint) or not teleop)):
        scenes = {"simulator": SIM_NODE} if simulated else {}
        drivers[WebParameters] = "web_node", {**scenes, **policy}
    if teleop:  # a launched node has no terminal, and so no keys
        drivers[TeleopParameters] = "teleop_node", {"source": "gamepad", **policy}
    return drivers


def _checkpoint(given: Given) -> str:
    """Return the path of the policy that is to drive the simulated robot, or an empty text.

    Raises `UserError` if there is no such file, or no simulated robot.
    """
    own = given[RecordLaunchParameters.__name__]
    if not own.get("checkpoint"):
        return ""
    if not own.get("sim"):
        raise UserError(
            "argument checkpoint is a policy for the simulated robot; add sim:=true, or start it by "
            "robot.launch.py and give its node's name by policy:=policy_node"
        )
    if _policy(given):
        raise UserError("argument checkpoint starts a policy; leave out policy")
    return str(checkpoint_path(own["checkpoint"]).resolve())


def _policy(given: Given) -> str:
    """Return the name of the policy node that was started otherwise, or an empty text."""
    return str(given[WebParameters.__name__].get("policy", ""))


def _shared_with_policy(given: Given) -> dict[str, Any]:
    """Return what was given for those who drive and is a parameter of the policy, too, such as limits."""
    known = {parameter.name for parameter in parameters_of(PolicyParameters)}
    return {name: value for name, value in given[WebParameters.__name__].items() if name in known}
