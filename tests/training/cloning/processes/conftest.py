from __future__ import annotations

import gc
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.queues import SimpleQueue

import pytest

from ttm.policy import UserError
from ttm.training.train import TrainCommand

Told = list[str]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def in_two_processes() -> Callable[[TrainCommand], tuple[list[int | None], Told]]:
    """Return a function that runs a training in two processes.

    It returns their exit codes and what they told as errors.
    """
    return run_in_two


def run_in_two(training: TrainCommand) -> tuple[list[int | None], Told]:
    training = replace(training, processes=replace(training.processes, devices=2))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    told: SimpleQueue[str] = FORK.SimpleQueue()
    processes = [FORK.Process(target=_run, args=(rank, port, training, told)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        if process.exitcode is None:
            process.kill()
    errors = []
    while not told.empty():
        errors.append(told.get())
    return [process.exitcode for process in processes], errors


def _run(rank: int, port: int, training: TrainCommand, told: SimpleQueue[str]) -> None:
    """Do what a process does that Fabric or another launcher has started.

    The garbage of earlier tests is left alone. What finalizes it may end a process that was forked in a
    segmentation fault: threads, graphics contexts and DDS do not survive a fork.
    """
    gc.freeze()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    try:
        code = training.run()
    except UserError as error:
        told.put(str(error))
        code = 2
    os._exit(code)
