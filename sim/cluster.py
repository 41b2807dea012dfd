"""Workers on the machines of a Ray cluster (Moritz et al. 2018, "Ray: A Distributed Framework").

Each job is a Ray task, which Ray runs again elsewhere if its machine dies. The processes of Ray run task
after task, so that each makes its worker once. Nothing is shared but Ray: files that workers read
travel to them, and the files that a job makes come back with its result.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address

from ttm.policy.errors import UserError, first_line
from ttm.policy.files import write_atomically
from ttm.sim.workers import (
    Job,
    MakeWorker,
    Workers,
    hold_worker,
    holds_worker,
    require_same_software,
    run_held,
    software,
)

RETRIES = 3
"""How often a job is run again whose process or machine died."""
WORKER_BYTES = 1 << 30
"""The memory that Ray counts for each worker, so that it starts no more of them than fit."""
CONNECTION_S = 5.0
"""How long to wait for an answer at the cluster's address."""


@dataclass(frozen=True)
class Start:
    """What a process needs to make its worker."""

    make_worker: MakeWorker
    arguments: tuple[Any, ...]
    """What it is called with. The files of those that are a `Path` are in `files`."""
    files: Mapping[int, tuple[str, bytes]]
    """Index of such an argument -> the file's name and what is in it."""
    software: Mapping[str, str | None]
    """The software of the machine where the command runs."""


class Cluster(Workers):
    """Workers on the machines of a Ray cluster; see `ttm.sim.workers.WorkerPool`.

    address: HOST:PORT or auto. most: the largest number of jobs at once, by default as many as Ray has
    processors for.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
        arguments: tuple[Any, ...],
        address: str,
        most: int | None,
        advice: str,
    ):
        files = {
            index: (argument.name, argument.read_bytes())
            for index, argument in enumerate(arguments)
            if isinstance(argument, Path)
        }
        self._start = Start(make_worker, arguments, files, software())
        self._address, self._most, self._advice = address, most, advice

    def start(self) -> None:
        """Connect to the cluster. Raises `UserError` if there is none."""
        _connect(self._address)
        self._started = [ray.put(self._start)]  # within a list, tasks fetch it only if they need it
        needs = {"num_cpus": 1, "memory": WORKER_BYTES, "max_retries": RETRIES}
        self._task: Any = ray.remote(**needs)(_run_on_node)

    @property
    def limit(self) -> int:  # type: ignore[override]
        """Twice the cluster's processors: what waits tells Ray's autoscaler that more are wanted."""
        return self._most or max(1, 2 * int(ray.cluster_resources().get("CPU", 0)))

    def submit(self, job: Job) -> Future[Any]:
        future: Future[Any] = self._task.remote(self._started, job).future()
        return future

    def result(self, job: Job, future: Future[Any]) -> Any:
        try:
            result, files = future.result()
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise UserError(
                f"a job was lost {RETRIES + 1} times on {self._address}, perhaps for lack of memory (each "
                f"worker needs about 1 GB): {first_line(error)}{self._advice}"
            ) from error
        for name, data in files.items():
            assert job.folder is not None
            write_atomically(job.folder / name, data)
        return result

    def close(self) -> None:
        """Leave the cluster. Jobs that are under way are given up."""
        ray.shutdown()


def _connect(address: str) -> None:
    """Connect to the cluster. Ray itself would wait for minutes where nothing answers."""
    host, colon, port = address.rpartition(":")
    try:
        if "://" in address:
            raise ValueError("Ray Client is not supported")
        if colon:
            socket.create_connection((host.strip("[]"), int(port)), CONNECTION_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RayError, RuntimeError, ValueError) as error:
        raise UserError(
            f"--ray {address}: no connection to a Ray cluster ({first_line(error)}); run ray start --head, "
            "and this command on one of its machines with --ray auto"
        ) from error


def _run_on_node(started: list[ray.ObjectRef[Start]], job: Any) -> tuple[Any, dict[str, bytes]]:
    """Run a job in a process of the cluster. Returns its result, and the names and bytes of its files."""
    if not holds_worker():
        _hold(ray.get(started[0]))
    with TemporaryDirectory() as name:
        folder = Path(name)
        result = run_held(job if job.folder is None else replace(job, folder=folder))
        return result, {path.name: path.read_bytes() for path in folder.iterdir()}


def _hold(start: Start) -> None:
    with TemporaryDirectory() as folder:
        arguments = list(start.arguments)
        for index, (name, data) in start.files.items():
            arguments[index] = Path(folder, name)
            arguments[index].write_bytes(data)
        try:
            require_same_software(start.software)
            hold_worker(start.make_worker, tuple(arguments))
        except UserError as error:
            raise UserError(f"Ray node {get_node_ip_address()}: {error}") from error
