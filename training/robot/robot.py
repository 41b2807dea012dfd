"""Runs a policy on a robot or in simulation, after checks that need no node."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.run.execution.choice import make_execution
from ttm.sim.environment import choose_task, inspect_env, require_memory_tasks
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.robot.processes import running_nodes, simulation_environment, wait_for_episodes
from ttm.training.robot.ros_install import require_rclpy
from ttm_policy.parameters import PolicyParameters, SimParameters


def drive_robot(policy: PolicyParameters) -> int:
    """Run `policy_node` until it ends, and return its exit code.

    Raises `UserError` before any process starts if ROS or the checkpoint are missing.
    """
    require_rclpy()
    policy = replace(policy, checkpoint=str(_checkpoint(policy)))
    with running_nodes({"policy_node": asdict(policy)}, os.environ) as nodes:
        return nodes["policy_node"].wait()


def drive_simulation(policy: PolicyParameters, sim: SimParameters) -> int:
    """Run both nodes until the last episode, and return the exit code.

    Raises `UserError` before any process starts if ROS, checkpoint, environment or task are missing
    or do not fit together.
    """
    require_rclpy()
    checkpoint = _checkpoint(policy)
    facts = inspect_env(sim.env)
    trained, _ = load_checkpoint(checkpoint)
    trained.spec.require_compatible(facts.spec, theirs="the simulated robot", ours=str(checkpoint))
    make_execution(policy.execution, trained.config.chunk, trained.spec.action_size)
    policy = replace(policy, checkpoint=str(checkpoint))
    task = choose_task(facts.name, facts.tasks, sim.task, sim.instruction, label="--task")
    sim = replace(sim, task=task)
    if option := sim.condition.needs_memory_task:
        require_memory_tasks(sim.env, [sim.task], option)
    parameters = {
        "policy_node": {**asdict(policy), "use_sim_time": True},
        "sim_node": asdict(sim),
    }
    with running_nodes(parameters, simulation_environment()) as nodes:
        return wait_for_episodes(nodes["policy_node"], nodes["sim_node"])


def _checkpoint(policy: PolicyParameters) -> Path:
    """Return the absolute path of the named checkpoint or of the shipped one."""
    return checkpoint_path(policy.checkpoint or SHIPPED).resolve()
