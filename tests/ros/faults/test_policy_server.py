"""A policy on another machine that is killed, hangs, or comes back, over DDS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgpack", reason="the extra [serve] is not here")

CAN = "pick up the red can"
MAX_AGE_S, TICK_S = 0.6, 0.2
SLACK_S = 1.0
"""For a computer that is busy with other work."""

Server = subprocess.Popen[str]
StartServer = Callable[[int], tuple[Server, int]]


@pytest.fixture
def start_server(checkpoint: Path) -> Iterator[StartServer]:
    """Run `ttm serve` at a port, 0 for a free one, and return it with the port."""
    started: list[Server] = []

    def start(port: int) -> tuple[Server, int]:
        command = [sys.executable, "-m", "ttm.training.cli", "serve", "--port", str(port)]
        server = subprocess.Popen(
            [*command, "--checkpoint", str(checkpoint)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        started.append(server)
        assert server.stdout is not None
        return server, int(server.stdout.readline().rpartition(":")[2])

    yield start
    for server in started:
        server.kill()
        server.wait()


def test_without_its_server_the_robot_stands_still_and_the_node_says_why(
    robot: Any, start_policy: Any, start_server: StartServer, in_time: Any
) -> None:
    server, port = start_server(0)
    url = f"ws://127.0.0.1:{port}"
    process = start_policy(
        checkpoint="",
        actor=url,
        instruction=CAN,
        use_sim_time=True,
        max_age_s=MAX_AGE_S,
        stop_after_s=600.0,
        e_stop_rearm=False,
    )

    def moved_on(number: signal.Signals) -> float:
        nonlocal server
        robot.wait_for_motion()
        begun_s = time.time()
        server.send_signal(number)
        robot.wait(lambda: f"the policy server {url}" in robot.message, "the server's name")
        robot.wait(lambda: robot.stands, "zero on all motion topics")
        stopped_s, last_s = time.time(), robot.moved_at_s
        time.sleep(2 * TICK_S)  # nothing that moves follows
        assert robot.stands
        assert robot.moved_at_s < stopped_s
        server.kill()
        server.wait()
        assert not robot.call("reset_memory").success  # nobody is there
        server, _ = start_server(port)
        robot.wait(lambda: robot.call("reset_memory").success, "the new session")
        robot.wait_for_motion()
        return last_s - begun_s

    for number in (signal.SIGKILL, signal.SIGSTOP):
        in_time(MAX_AGE_S + TICK_S + SLACK_S, partial(moved_on, number))
    assert process.exit_code is None
    assert process.end() == 0
