"""The nodes that `record.launch.py` starts. Only that file imports this module; see `nodes`."""

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch import LaunchDescriptionEntity
from launch.actions import Shutdown

from ttm.policy.errors import UserError
from ttm.sim.collection.person import PATIENT_MAX_AGE_S, next_seed
from ttm.sim.shipped import checkpoint_path
from ttm_policy.launching.launch_parameters import RecordLaunchParameters
from ttm_policy.launching.nodes import (
    Given,
    node_action,
    require_parameter_file,
    require_started,
    simulator_action,
    with_time,
)
from ttm_policy.parameter_sets.declared_parameter import parameters_of
from ttm_policy.parameters import (
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
)

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
