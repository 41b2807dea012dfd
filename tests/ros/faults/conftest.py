"""The robot whose sensors fail on demand, and policy nodes that start quickly."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.faults.failing_robot import WAIT_S, FailingRobot
from ttm_policy.faults.strict_contract import strict_contract


@pytest.fixture(scope="session")
def contract_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contract that the table of faults is for."""
    path = tmp_path_factory.mktemp("contract") / "robot.yaml"
    path.write_text(yaml.safe_dump(strict_contract()))
    return path


@pytest.fixture(scope="module")
def robot(contract_file: Path, observations: list[dict[str, np.ndarray]]) -> Iterator[FailingRobot]:
    """One robot for all tests of a module."""
    rclpy.init()
    node = FailingRobot(load_contract(contract_file), SPEC, observations[0])
    yield node
    node.close()
    rclpy.shutdown()


InTime = Callable[[float, Callable[[], float]], None]


@pytest.fixture(scope="session")
def in_time() -> InTime:
    """Return a function that repeats what takes seconds, until it takes at most so many.

    A machine that is busy with other work delays one attempt, but not all for minutes.
    """

    def repeat(limit_s: float, attempt: Callable[[], float]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while (took_s := attempt()) > limit_s:
            assert time.monotonic() < deadline_s, f"it took {took_s:.3f} s; at most {limit_s} s"

    return repeat


class PolicyProcess:
    """One policy node in a process."""

    def __init__(self, pid: int, codes: dict[int, int], loading: Path):
        self.pid, self._codes, self.loading = pid, codes, loading
        """`loading` is there while the fault "slow" keeps the policy from being loaded."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._codes.get(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        deadline_s = time.monotonic() + WAIT_S
        while self.exit_code is None:
            assert time.monotonic() < deadline_s, "the process does not end"
            time.sleep(0.01)
        return self.exit_code

    def end(self) -> int:
        """End the process if it is still there, and return its exit code."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGTERM)
        return self.wait()


StartPolicy = Callable[..., PolicyProcess]


@pytest.fixture(scope="session")
def start_policy(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, contract_file: Path
) -> Iterator[StartPolicy]:
    """Start policy nodes with parameters, as children of a process that has imported everything."""
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("policy_processes.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    started: queue.Queue[int] = queue.Queue()
    codes: dict[int, int] = {}
    processes: list[PolicyProcess] = []

    def read(lines: Any) -> None:
        for line in lines:
            pid, *code = map(int, line.split())
            if code:
                codes[pid] = code[0]
            else:
                started.put(pid)

    threading.Thread(target=read, args=(parent.stdout,), daemon=True).start()
    folder = tmp_path_factory.mktemp("parameters")

    def start(fault: str = "", **parameters: Any) -> PolicyProcess:
        path = folder / f"{len(processes)}.yaml"
        values = {"checkpoint": str(checkpoint), "contract": str(contract_file), "engine": "torch"}
        path.write_text(yaml.safe_dump({"/**": {"ros__parameters": values | parameters}}))
        order = {"fault": fault, "arguments": ["--ros-args", "--params-file", str(path)]}
        parent.stdin.write(json.dumps(order) + "\n")
        parent.stdin.flush()
        pid = started.get(timeout=WAIT_S)
        processes.append(PolicyProcess(pid, codes, path.with_suffix(".loading")))
        return processes[-1]

    yield start
    for process in processes:
        process.end()
    parent.terminate()  # an end in order takes seconds, in which nothing happens
    parent.wait(WAIT_S)
