"""The robot whose sensors fail on demand, and policy nodes that start quickly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml
from failing_robot import WAIT_S, FailingRobot, strict_contract
from node_process import NodeProcess

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract


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


StartPolicy = Callable[..., NodeProcess]


@pytest.fixture(scope="session")
def policies(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, contract_file: Path
) -> Iterator[StartPolicy]:
    """Start policy nodes with parameters, and perhaps with a fault; they end with the session."""
    started: list[NodeProcess] = []
    folder = tmp_path_factory.mktemp("policies")

    def start(fault: str = "", namespace: str = "", **parameters: Any) -> NodeProcess:
        values = {"checkpoint": str(checkpoint), "contract": str(contract_file), "engine": "torch"}
        path = folder / str(len(started))
        apart = ["-r", f"__ns:=/{namespace}", "-r", "/clock:=clock"] if namespace else []
        started.append(NodeProcess("policy_node", path, values | parameters, fault, apart))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def start_policy(policies: StartPolicy) -> Iterator[StartPolicy]:
    """Start policy nodes as `policies` does; they end with the test, so that none outlives its failure."""
    started: list[NodeProcess] = []

    def start(*args: Any, **parameters: Any) -> NodeProcess:
        started.append(policies(*args, **parameters))
        return started[-1]

    yield start
    for process in started:
        process.end()
