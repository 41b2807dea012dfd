"""The nodes that `record.launch.py` starts. Only that file imports this module; see `nodes`."""

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch import LaunchDescriptionEntity
from launch.actions import Shutdown

from ttm.sim.collection.person import PATIENT_MAX_AGE_S, next_seed
from ttm_policy.launching.launch_parameters import RecordLaunchParameters
from ttm_policy.launching.nodes import (
    Given,
    node_action,
    require_started,
    simulator_action,
    with_time,
)
from ttm_policy.parameters import (
    NodeParameters,
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


def recorder(given: Given) -> list[LaunchDescriptionEntity]:
    """Return the recorder, what a person drives by, and with `sim` the simulated robot."""
    own = given[RecordLaunchParameters.__name__]
    simulated, teleop = bool(own.get("sim")), bool(own.get("teleop"))
    drivers: dict[type[NodeParameters], tuple[str, dict[str, Any]]] = {}
    if own.get("web", simulated and not teleop):
        drivers[WebParameters] = "web_node", {"simulator": "sim_node"} if simulated else {}
    if teleop:  # a launched node has no terminal, and so no keys
        drivers[TeleopParameters] = "teleop_node", {"source": "gamepad"}
    kinds = (RecorderParameters, *drivers, *((SimParameters,) if simulated else ()))
    require_started(given, kinds, OPTIONAL)
    shared = {"use_sim_time": simulated}
    patience = {"max_age_s": PATIENT_MAX_AGE_S} if simulated else {}
    actions = [_node("recorder_node", RecorderParameters, given, shared)]
    for kind, (name, defaults) in drivers.items():
        actions.append(_node(name, kind, given, {**shared, **patience, **defaults}))
    if simulated:
        folder = given[RecorderParameters.__name__].get("folder", RecorderParameters.folder)
        person = {"driver": "person", "first_seed": next_seed(folder)}
        actions.append(simulator_action(own, person, given[SimParameters.__name__]))
    return actions


def _node(
    name: str, kind: type[NodeParameters], given: Given, defaults: Mapping[str, Any]
) -> LaunchDescriptionEntity:
    own = given[RecordLaunchParameters.__name__]
    end = Shutdown(reason=f"{name} has ended")
    values = with_time(own, given[kind.__name__])
    return node_action(name, own, defaults, values, simulated=bool(own.get("sim")), on_exit=end)
