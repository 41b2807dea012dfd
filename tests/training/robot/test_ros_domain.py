"""A ROS domain is claimed by one process, and not where somebody listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from ttm.policy import UserError
from ttm.training.robot import processes as ros_domain

CLAIM = (
    "import os; os.getpid = lambda: {pid}; from ttm.training.robot.processes import claim_ros_domain; "
    "print(claim_ros_domain(), flush=True); input()"
)


def test_two_processes_have_different_domains_until_they_end() -> None:
    def start() -> subprocess.Popen[str]:
        code = [sys.executable, "-c", CLAIM.format(pid=os.getpid())]
        return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(process: subprocess.Popen[str]) -> int:
        assert process.stdout is not None
        return int(process.stdout.readline())

    with start() as first, start() as second:
        domains = {read(first), read(second), ros_domain.claim_ros_domain()}
        assert len(domains) == 3
        assert ros_domain.claim_ros_domain() in domains  # asked again, it is the same
        first.communicate("\n")
        second.communicate("\n")


@pytest.mark.parametrize("number", [0, 3])
def test_a_domain_in_which_somebody_listens_is_left_to_him(number: int) -> None:
    """The first participant may have ended before the others."""
    domain, claim = ros_domain._claimed.__wrapped__()
    claim.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as participant:
        participant.bind(("", 7410 + 250 * domain + 2 * number))
        other, claim = ros_domain._claimed.__wrapped__()
    claim.close()
    assert other != domain


def test_without_a_free_domain_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ros_domain, "NUM_DOMAINS", 0)
    with pytest.raises(UserError, match="choose one by ROS_DOMAIN_ID"):
        ros_domain._claimed.__wrapped__()
