"""The nodes that the launch files start. Only launch files import this module.

It needs ROS's `launch` and `launch_ros`, which come with a ROS 2 install and not with the wheels of
`rclpy`.
"""

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import LaunchContext, LaunchDescriptionEntity
from launch.actions import Shutdown
from launch.events.process import ProcessExited
from launch.logging import launch_config
from launch_ros.actions import Node

from ttm.policy.errors import UserError
from ttm_policy.parameter_sets.declared_parameter import parameters_of
from ttm_policy.launching.launch_parameters import TOPICS, LaunchParameters, RobotLaunchParameters
from ttm_policy.launching.parameter_files import require_sections, write_defaults, write_given
from ttm_policy.launching.values import check_name
from ttm_policy.parameters import NodeParameters, PolicyParameters, SimParameters

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
