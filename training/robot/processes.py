"""Starts the nodes and programs of the ROS package as processes, and stops nodes in order.

It does what a launch file does, and needs no ROS install. The nodes stop the robot when they are stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from ttm.training.robot.ros_domain import claim_ros_domain
from ttm.training.robot.ros_install import require_rclpy

LOOK_S = 0.02
"""Time between two looks at running nodes."""
RESPAWN_DELAY_S = 0.5
NO_CRASH = (0, 2)
"""The exit codes of a node that has not crashed: after a signal, and for wrong parameters."""
STOP_TIMEOUT_S = 10.0
"""A node that has not ended this long after SIGINT is killed."""


def run_program(module: str, options: Mapping[str, Any]) -> int:
    """Run a module of `ttm_policy` with its options as JSON until it ends, and return its exit code.

    Raises `UserError` before it starts if ROS is missing.
    """
    require_rclpy()
    command = [sys.executable, "-m", "ttm_policy", module, json.dumps(options)]
    return subprocess.run(command, check=False).returncode


def simulation_environment() -> dict[str, str]:
    """Return an environment that keeps commands from real robots and other simulations.

    Raises `UserError` if no ROS domain is free.
    """
    environment = dict(os.environ)
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if "ROS_DOMAIN_ID" not in environment:
        environment["ROS_DOMAIN_ID"] = str(claim_ros_domain())
    names = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")
    settings = " ".join(f"{name}={environment[name]}" for name in names)
    print(f"to look in: export {settings}", flush=True)
    return environment


def wait_for_episodes(
    nodes: Mapping[str, subprocess.Popen[bytes]], look: Callable[[], object] = lambda: None
) -> int:
    """Return the exit code of the simulator, or that of the policy if it ends before.

    look: called again and again meanwhile. It may start a node again.
    """
    while (code := nodes["sim_node"].poll()) is None:
        look()
        if (ended := nodes["policy_node"].poll()) is not None:
            return ended or 1
        time.sleep(LOOK_S)
    return code


def start_after_crash(
    nodes: dict[str, subprocess.Popen[bytes]], name: str, environment: Mapping[str, str]
) -> bool:
    """Start a node again with its parameters if it has crashed, and return whether it had."""
    process = nodes[name]
    if process.poll() in (None, *NO_CRASH):
        return False
    print(f"{name} has crashed, and is started again", flush=True)
    time.sleep(RESPAWN_DELAY_S)
    nodes[name] = subprocess.Popen(process.args, env=environment)
    return True


def wait_for_first(nodes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the exit code of the node that ends first."""
    while True:
        for node in nodes:
            if (code := node.poll()) is not None:
                return code
        time.sleep(LOOK_S)


@contextmanager
def running_nodes(
    parameters: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start nodes of `ttm_policy`, and stop those that still run at the end, in the same order.

    parameters: name of the node -> its ROS parameters. Yields name -> process.
    """
    before = {
        number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="ttm_robot_") as folder:
        try:
            for name, values in parameters.items():
                file = _write_parameters(Path(folder) / f"{name}.yaml", values)
                command = [sys.executable, "-m", "ttm_policy", name]
                command += ["--ros-args", "--params-file", str(file)]
                nodes[name] = subprocess.Popen(command, env=environment)
            yield nodes
        finally:
            for node in nodes.values():
                _stop(node)
            for number, handler in before.items():
                signal.signal(number, handler)


def _write_parameters(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a parameter file, since ROS reads `yes` on a command line as a boolean."""
    text = yaml.safe_dump(
        {"/**": {"ros__parameters": dict(values)}}, allow_unicode=True, width=10_000
    )
    path.write_text(text)
    return path


def _stop(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is not None:
        return
    node.send_signal(signal.SIGINT)
    try:
        node.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
