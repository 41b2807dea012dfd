"""`ttm robot --respawn` without ROS: processes of a few lines stand for the nodes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ttm.training.robot import processes
from ttm.training.robot.processes import start_after_crash, wait_for_episodes


def _process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.parametrize(("code", "again"), [("os._exit(1)", True), ("os._exit(2)", False)])
def test_only_a_crash_is_followed_by_another_start(
    code: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESPAWN_DELAY_S", 0.0)
    nodes = {"policy_node": _process(f"import os; {code}")}
    first = nodes["policy_node"]
    first.wait()
    assert start_after_crash(nodes, "policy_node", os.environ) is again
    assert (nodes["policy_node"] is not first) is again
    nodes["policy_node"].wait()


def test_a_running_node_is_left_alone() -> None:
    nodes = {"policy_node": _process("import time; time.sleep(600)")}
    assert not start_after_crash(nodes, "policy_node", os.environ)
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()


def test_the_simulator_goes_on_only_if_the_policy_comes_back() -> None:
    """Without `look`, the crash of the policy is the end; with it, the simulator's code counts."""
    wait, crash = "import time; time.sleep(600)", "import os; os._exit(3)"
    nodes = {"sim_node": _process(wait), "policy_node": _process(crash)}
    assert wait_for_episodes(nodes) == 3

    def look() -> None:
        if nodes["policy_node"].poll() is not None:
            nodes["policy_node"] = _process(wait)
            nodes["sim_node"].terminate()

    nodes["policy_node"].wait()
    assert wait_for_episodes(nodes, look) == -15
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()
