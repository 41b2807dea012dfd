"""Runs the recorder until it ends."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace

from ttm.training.robot.processes import running_nodes
from ttm.training.robot.ros_install import require_rclpy
from ttm_policy.parameters import RecorderParameters


def record_episodes(parameters: RecorderParameters) -> int:
    """Run `recorder_node`, with keys if there is a terminal, and return its exit code.

    Raises `UserError` before it starts if ROS is missing.
    """
    require_rclpy()
    keys = sys.stdin.isatty()
    if not keys:
        print("no terminal for keys: call ~/start and ~/stop of recorder_node", flush=True)
    with running_nodes(
        {"recorder_node": asdict(replace(parameters, keys=keys))}, os.environ
    ) as nodes:
        return nodes["recorder_node"].wait()
