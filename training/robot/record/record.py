"""Runs the recorder, and what a person drives by, until one of them ends."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ttm.datasets.layout import next_episode_path
from ttm.sim.environment import FIRST_DEMONSTRATION_SEED, KITCHEN, choose_task, inspect_env
from ttm.training.robot.processes import running_nodes, simulation_environment, wait_for_first
from ttm.training.robot.ros_install import require_rclpy
from ttm_policy.parameters import RecorderParameters, SimParameters, WebParameters

SIMULATED_MAX_AGE_S = 5.0
"""The least `max_age_s` of a simulated robot: it does no harm, and a busy machine simulates slowly."""


def record_episodes(recorder: RecorderParameters, web: WebParameters | None) -> int:
    """Run `recorder_node`, and `web_node` unless `web` is None; return the exit code.

    Raises `UserError` before anything starts if ROS is missing.
    """
    require_rclpy()
    pages = {} if web is None else {"web.web_node": asdict(web)}
    return _run({**pages, **_recording(recorder, web)}, os.environ)


def record_simulation(recorder: RecorderParameters, web: WebParameters, task: str) -> int:
    """Run the simulated robot for a person as well; return the exit code.

    Raises `UserError` before anything starts if ROS, environment or task are missing or do not fit.
    """
    require_rclpy()
    tasks = inspect_env(KITCHEN).tasks
    sim = SimParameters(
        task=choose_task(KITCHEN, tasks, task, recorder.instruction, label="--task"),
        instruction=recorder.instruction,
        first_seed=_next_seed(recorder.folder),
        driver="person",
        contract=recorder.contract,
        cmd_vel_stamped=recorder.cmd_vel_stamped,
    )
    max_age_s = max(web.max_age_s, SIMULATED_MAX_AGE_S)
    web = replace(web, simulator="sim_node", max_age_s=max_age_s)
    nodes: dict[str, Mapping[str, Any]] = {
        "web.web_node": asdict(web),
        **_recording(recorder, web),
    }
    nodes = {name: {**values, "use_sim_time": True} for name, values in nodes.items()}
    return _run({**nodes, "sim_node": asdict(sim)}, simulation_environment())


def _recording(
    recorder: RecorderParameters, web: WebParameters | None
) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of the recorder, with keys if there is a terminal."""
    keys = sys.stdin.isatty()
    if not keys and web is None:
        print("no terminal for keys: call ~/start and ~/stop of recorder_node", flush=True)
    return {"recorder_node": asdict(replace(recorder, keys=keys))}


def _run(nodes: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]) -> int:
    with running_nodes(nodes, environment) as running:
        return wait_for_first(list(running.values()))


def _next_seed(folder: str) -> int:
    """Return an initial state that no episode of the folder began with."""
    (number,) = re.findall(r"\d+", next_episode_path(Path(folder).expanduser()).stem)
    return FIRST_DEMONSTRATION_SEED + int(number)
