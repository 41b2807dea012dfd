"""Runs `policy_node` beside a node that stands for the robot, and watches its memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.training.bench.memory_growth import watch_memory
from ttm.training.robot.processes import running_nodes, simulation_environment


def some_instruction(policy: Policy) -> str:
    """Return the first instruction that the policy knows, or one if it knows none."""
    return next(iter(policy.known_instructions), "pick up the red can")


def run_beside(
    policy: Mapping[str, Any], robot: str, parameters: Mapping[str, Any], limit_s: float
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Run both nodes until that of the robot ends, at the longest for `limit_s`.

    policy: the parameters of `policy_node`. robot: the other node. parameters: of that; `out` is the
    file in which it leaves what it saw, as JSON. Returns what it saw, and the samples of the policy's
    memory (see `watch_memory`). Raises `UserError` if it left nothing.
    """
    nodes = {"policy_node": dict(policy), robot: dict(parameters)}
    with running_nodes(nodes, simulation_environment()) as processes:
        memory = watch_memory(processes["policy_node"], processes[robot], limit_s)
    out = Path(parameters["out"])
    if not out.is_file():
        raise UserError("the nodes did not run to the end; see their messages above")
    return json.loads(out.read_text()), memory
