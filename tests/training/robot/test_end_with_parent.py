"""The nodes that `ttm` starts end when it is gone, even if it was killed: nobody could stop them any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ttm.training.robot.processes import PARENT

WAIT_S = 180.0
CHILD = "import time; from ttm_policy.__main__ import end_with_parent; end_with_parent(); time.sleep(60)"


def children(process: int) -> list[int]:
    return [
        int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_program_whose_parent_was_gone_at_once_ends_by_sigterm() -> None:
    environment = {**os.environ, PARENT: "1" if os.getpid() != 1 else "2"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, timeout=WAIT_S, check=False
    )
    assert done.returncode == -signal.SIGTERM


def test_policy_and_simulator_end_when_the_command_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("rclpy", reason="ROS 2 is not here")
    command = [sys.executable, "-m", "ttm.training.cli", "robot", "--sim", "--task", "pick"]
    process = subprocess.Popen(
        [*command, "--episodes", "1000", "--max-ticks", "1000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "episode 1 of" in line:  # so the policy drives
            break
    nodes = children(process.pid)
    assert len(nodes) == 2
    assert all(map(alive, nodes))
    process.kill()
    process.wait()
    deadline_s = time.monotonic() + WAIT_S
    while any(map(alive, nodes)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    left = [node for node in nodes if alive(node)]
    for node in left:
        os.kill(node, signal.SIGKILL)
    assert not left
