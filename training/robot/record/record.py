"""Runs the recorder, and what a person drives by, until one of them ends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.collection.person import PATIENT_MAX_AGE_S, next_seed
from ttm.sim.environment import KITCHEN, choose_task, inspect_env
from ttm.sim.shipped import checkpoint_path
from ttm.training.robot.processes import running_nodes, simulation_environment, wait_for_first
from ttm.training.robot.record.nodes import Nodes
from ttm.training.robot.ros_install import require_rclpy
from ttm_policy.parameters import PolicyParameters, SimParameters

POLICY_NODE = "policy_node"


def record_episodes(nodes: Nodes) -> int:
    """Run the nodes until one of them ends; return its exit code.

    Raises `UserError` before anything starts if ROS is missing.
    """
    require_rclpy()
    return _run(nodes.parameters(), os.environ)


def with_policy(nodes: Nodes, checkpoint: str) -> Nodes:
    """Return the nodes with a policy of the simulated robot, in whose place the person drives.

    It is recorded from the start of a scene, without a countdown. Raises `UserError` if the checkpoint is of
    another robot.
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
    """Run the simulated robot for a person as well; return the exit code.

    Raises `UserError` before anything starts if ROS, environment or task are missing or do not fit.
    """
    require_rclpy()
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
    for name, values in parameters.items():
        values["use_sim_time"] = True
        if "max_age_s" in values:
            values["max_age_s"] = max(values["max_age_s"], PATIENT_MAX_AGE_S)
        if name == "web_node" or (name == "recorder_node" and nodes.beside_policy):
            values["simulator"] = "sim_node"
    return _run({**parameters, "sim_node": asdict(sim)}, simulation_environment())


def _run(nodes: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]) -> int:
    with running_nodes(nodes, environment) as running:
        return wait_for_first(list(running.values()))
