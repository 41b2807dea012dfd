"""Runs a node of ours beside one that stands for the robot, and watches its memory and its time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttm.policy.errors import UserError
from ttm.policy.policy import Policy
from ttm.training.robot.processes import running_nodes, simulation_environment

Samples = list[tuple[float, float]]
"""Times in seconds, on a steady clock, each with what was seen then."""

SETTLING_S = 20.0
"""The memory of a process is compared from this time on: libraries fill their pools at first."""

UTIME, STIME = 11, 12
"""Fields of /proc/PID/stat after the name of the program; see proc(5)."""


def run_beside(
    policy: Mapping[str, Any], robot: str, parameters: Mapping[str, Any], limit_s: float
) -> tuple[dict[str, Any], Samples]:
    """Run both nodes until that of the robot ends, at the longest for `limit_s`.

    policy: the parameters of `policy_node`. robot: the other node. parameters: of that; `out` is the
    file in which it leaves what it saw, as JSON. Returns what it saw, and the resident memory of the
    policy in MB. Raises `UserError` if it left nothing.
    """
    nodes = {"policy_node": dict(policy), robot: dict(parameters)}
    with running_nodes(nodes, simulation_environment()) as processes:
        node = processes["policy_node"]
        memory = watch(resident_mb, node, processes[robot], every_s=1.0, limit_s=limit_s)
    out = Path(parameters["out"])
    if not out.is_file():
        raise UserError("the nodes did not run to the end; see their messages above")
    return json.loads(out.read_text()), memory


def some_instruction(policy: Policy) -> str:
    """Return the first instruction that the policy knows, or one if it knows none."""
    return next(iter(policy.known_instructions), "pick up the red can")


def watch(
    look: Callable[[int], float | None],
    process: subprocess.Popen[bytes],
    other: subprocess.Popen[bytes],
    every_s: float,
    limit_s: float = math.inf,
) -> Samples:
    """Return what `look` found every `every_s` seconds until one of two processes ends.

    look: takes the number of `process`; None is left out.
    """
    samples: Samples = []
    until_s = time.monotonic() + limit_s
    while other.poll() is None and process.poll() is None and time.monotonic() < until_s:
        found = look(process.pid)
        if found is not None:
            samples.append((time.monotonic(), found))
        time.sleep(every_s)
    return samples


def watch_processor(process: subprocess.Popen[bytes], other: subprocess.Popen[bytes]) -> Samples:
    """Return the processor time (s) of a process until one of two ends."""
    return watch(processor_s, process, other, every_s=0.2)


def processor_s(process: int) -> float | None:
    """Return the seconds for which all threads of a process have run; None where it is unknown."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[UTIME]) + int(fields[STIME])) / os.sysconf("SC_CLK_TCK")


def used_between(samples: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return the processor time (s) that was used from one time to another, by interpolation."""
    times_s, used_s = np.array(samples).T
    return float(np.diff(np.interp([begin_s, end_s], times_s, used_s))[0])


def resident_mb(process: int | None = None) -> float | None:
    """Return the resident memory of a process (VmRSS) in megabytes; None where it is unknown.

    process: its number; None for this process.
    """
    try:
        status = Path(f"/proc/{process or 'self'}/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmRSS")), None)
    return None if line is None else int(line.split()[1]) / 1e3


def growth_mb(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return how much memory a process gained since it settled; None if it was not watched so long.

    samples: its resident memory in MB. Compared are the medians of the first and of the last tenth.
    """
    if not samples or samples[-1][0] - samples[0][0] < 2 * SETTLING_S:
        return None
    settled = [mb for at_s, mb in samples if at_s - samples[0][0] >= SETTLING_S]
    tenth = max(1, len(settled) // 10)
    return float(np.median(settled[-tenth:]) - np.median(settled[:tenth]))
