"""Runs a policy on a robot or in simulation, after checks that need no node."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.run.execution.choice import make_execution
from ttm.sim.environment import choose_task, inspect_env, require_memory_tasks
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.robot.processes import (
    running_nodes,
    simulation_environment,
    start_after_crash,
    wait_for_episodes,
)
from ttm.training.robot.ros_install import require_rclpy
from ttm_policy.parameters import PolicyParameters, SimParameters

Watch = Callable[["subprocess.Popen[bytes]"], object]
"""Is shown the policy's process again and again while it runs."""


def drive_robot(policy: PolicyParameters, *, respawn: bool = False) -> int:
    """Run `policy_node` until it ends, and return its exit code.

    respawn: start it again after a crash, with the memory that it had.

    Raises `UserError` before any process starts if ROS or the checkpoint are missing.
    """
    require_rclpy()
    policy = replace(policy, checkpoint=str(_checkpoint(policy)))
    with (
        _kept_memory(policy, respawn) as kept,
        running_nodes({"policy_node": asdict(kept)}, os.environ) as nodes,
    ):
        code = nodes["policy_node"].wait()
        while respawn and start_after_crash(nodes, "policy_node", os.environ):
            code = nodes["policy_node"].wait()
        return code


def drive_simulation(
    policy: PolicyParameters,
    sim: SimParameters,
    *,
    respawn: bool = False,
    watch: Watch = lambda _: None,
) -> int:
    """Run both nodes until the last episode, and return the exit code.

    respawn: start the policy again after a crash, with the memory that it had. watch: sees the policy's
    process again and again.

    Raises `UserError` before any process starts if ROS, checkpoint, environment or task are missing or do
    not fit together.
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
    environment = simulation_environment()
    with _kept_memory(policy, respawn) as kept:
        parameters = {
            "policy_node": {**asdict(kept), "use_sim_time": True},
            "sim_node": asdict(sim),
        }
        with running_nodes(parameters, environment) as nodes:

            def look() -> None:
                watch(nodes["policy_node"])
                if respawn:
                    start_after_crash(nodes, "policy_node", environment)

            return wait_for_episodes(nodes, look)


@contextmanager
def _kept_memory(policy: PolicyParameters, respawn: bool) -> Iterator[PolicyParameters]:
    """Yield the parameters with a file for the memory, if the policy is to be started again with it."""
    with tempfile.TemporaryDirectory(prefix="ttm_robot_") as folder:
        if respawn and not policy.recovery_path:
            policy = replace(policy, recovery_path=str(Path(folder) / "memory.npz"))
        yield policy


def _checkpoint(policy: PolicyParameters) -> Path:
    """Return the absolute path of the named checkpoint or of the shipped one."""
    return checkpoint_path(policy.checkpoint or SHIPPED).resolve()
