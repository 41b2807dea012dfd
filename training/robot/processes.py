"""Starts the nodes and programs of the ROS package as processes, and stops nodes in order.

The nodes stop the robot when they are stopped, and when this process is gone, however it ended.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm.training.runtime import Interruption

Nodes = dict[str, "subprocess.Popen[bytes]"]
"""Name of a node -> its process."""

PROGRAM = (sys.executable, "-m", "ttm_policy")
PARENT = "TTM_PARENT_PID"
"""Environment variable by which `python -m ttm_policy` knows the process that it must not outlive."""
LOOK_S = 0.02
"""Time between two looks at running nodes."""
RESPAWN_DELAY_S = 0.5
NO_CRASH = (0, 2)
"""The exit codes of a node that has not crashed: after a signal, and for wrong parameters."""
STOP_TIMEOUT_S = 10.0
"""A node that has not ended this long after SIGINT is killed."""
NUM_DOMAINS = 100
"""ROS domains 1 to this are tried. The ports of domains above 101 may be in use (ROS documentation)."""
NUM_PARTICIPANTS = 120
"""So many DDS participants of a computer have ports of their own in a domain."""


def require_rclpy() -> None:
    """Raise `UserError` that says how to get ROS 2 if its Python package is missing."""
    if find_spec("rclpy") is None:
        raise UserError(
            'ROS 2 is missing; source an install, or run: pip install "ttm-policy-stack[ros]"'
        )


def run_program(module: str, options: Mapping[str, Any]) -> int:
    """Run a module of `ttm_policy` with its options as JSON until it ends; return its exit code."""
    require_rclpy()
    command = [*PROGRAM, module, json.dumps(options, default=str)]
    return subprocess.run(command, env=_of_child(os.environ), check=False).returncode


@contextmanager
def running_nodes(
    parameters: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]
) -> Iterator[Nodes]:
    """Start nodes of `ttm_policy` by their parameters; stop those that run at the end, in that order."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in Interruption.SIGNALS}
    nodes: Nodes = {}
    with tempfile.TemporaryDirectory(prefix="ttm_robot_") as folder:
        try:
            for name, values in parameters.items():
                # On a command line ROS reads `yes` as a boolean.
                file = Path(folder) / f"{name}.yaml"
                data = {"/**": {"ros__parameters": dict(values)}}
                file.write_text(yaml.safe_dump(data, allow_unicode=True, width=10_000))
                command = [*PROGRAM, name, "--ros-args", "--params-file", str(file)]
                nodes[name] = subprocess.Popen(command, env=_of_child(environment))
            yield nodes
        finally:
            for node in nodes.values():
                _stop(node)
            for number, handler in before.items():
                signal.signal(number, handler)


def start_after_crash(nodes: Nodes, name: str, environment: Mapping[str, str]) -> bool:
    """Start a node again with its parameters if it has crashed, and return whether it had."""
    process = nodes[name]
    if process.poll() in (None, *NO_CRASH):
        return False
    print(f"{name} has crashed, and is started again", flush=True)
    time.sleep(RESPAWN_DELAY_S)
    nodes[name] = subprocess.Popen(process.args, env=_of_child(environment))
    return True


def wait_for_episodes(nodes: Nodes, look: Callable[[], object] = lambda: None) -> int:
    """Return the exit code of the simulator, or that of the policy if it ends before.

    look: called again and again meanwhile.
    """
    while (code := nodes["sim_node"].poll()) is None:
        look()
        if (ended := nodes["policy_node"].poll()) is not None:
            print(f"policy_node has ended with exit code {ended}; the run ends", file=sys.stderr)
            return ended or 1
        time.sleep(LOOK_S)
    return code


def _of_child(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that ends with the thread that starts it, the main one."""
    return {**environment, PARENT: str(os.getpid())}


def _stop(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is not None:
        return
    node.send_signal(signal.SIGINT)
    try:
        node.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


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


def claim_ros_domain() -> int:
    """Return a ROS domain that no process has claimed and where nobody listens; keep it until the end."""
    return _claimed()[0]


@functools.cache
def _claimed() -> tuple[int, socket.socket]:
    """The domain and the socket that keeps it, which is held as long as the process lives."""
    for offset in range(NUM_DOMAINS):
        domain = 1 + (os.getpid() + offset) % NUM_DOMAINS
        # The TCP port of the same number as the first participant's UDP port is used by nobody.
        claim = _bind(socket.SOCK_STREAM, "127.0.0.1", _port(domain, 0))
        if claim is None:
            continue
        if _is_silent(domain):
            return domain, claim
        claim.close()
    raise UserError(f"ROS domains 1 to {NUM_DOMAINS} are in use; choose one by ROS_DOMAIN_ID")


def _port(domain: int, participant: int) -> int:
    """Return the UDP port at which a participant listens (DDSI-RTPS 2.5, section 9.6.2)."""
    return 7410 + 250 * domain + 2 * participant


def _is_silent(domain: int) -> bool:
    for participant in range(NUM_PARTICIPANTS):
        listener = _bind(socket.SOCK_DGRAM, "", _port(domain, participant))
        if listener is None:
            return False
        listener.close()
    return True


def _bind(kind: socket.SocketKind, address: str, port: int) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, kind)
    try:
        bound.bind((address, port))
    except OSError:
        bound.close()
        return None
    return bound
