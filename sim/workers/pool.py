"""Jobs shared among workers, wherever these are.

The result of a job depends on that job alone, not on who runs it. To that end torch runs on one
thread in every worker, since sums over several threads round differently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from ttm.policy.errors import UserError
from ttm.sim.workers.cores import usable_cores
from ttm.sim.workers.local import Processes, ThisProcess
from ttm.sim.workers.worker import Job, Worker

AnyJob = TypeVar("AnyJob", bound=Job)
Result = TypeVar("Result")


class Workers(Protocol):
    """Workers in one place: this process, processes of this machine, a cluster."""

    @property
    def limit(self) -> int:
        """The number of jobs that may be handed over before one is done."""

    def start(self) -> None:
        """Make ready for jobs. `close` follows even if this raises an exception."""

    def submit(self, job: Job) -> Future[Any]:
        """Hand over a job."""

    def result(self, job: Job, future: Future[Any]) -> Any:
        """Return the result of a job whose future is done, with its files in the job's folder."""

    def close(self) -> None:
        """End the workers."""


class WorkerPool(Generic[AnyJob, Result]):
    """Workers that share jobs; a context manager.

    Parameters
    ----------
    make_worker : callable
        A class or function at the top level of a module. Each process calls it once.
    arguments : tuple
        What it is called with. A `Path` is that of a file, of which other machines get a copy.
    workers : int, optional
        Number of processes; a single one is this process itself. On a cluster, the largest number of
        jobs at once. None for one for each core that may be used here, or of the cluster.
    ray : str, optional
        Address of a Ray cluster whose machines run the jobs in place of this one.
    most : int, optional
        The number of jobs, if it is known: more processes are not started.
    advice : str
        What to add to the error message if a process dies.
    """

    def __init__(
        self,
        make_worker: Callable[..., Worker[AnyJob, Result]],
        arguments: tuple[Any, ...],
        *,
        workers: int | None = None,
        ray: str | None = None,
        most: int | None = None,
        advice: str = "",
    ):
        count = min(workers or usable_cores(), most or sys.maxsize)
        self._workers: Workers
        if ray is not None:
            self._workers = _cluster(make_worker, arguments, ray, workers, advice)
        elif count == 1:
            self._workers = ThisProcess(make_worker, arguments)
        else:
            self._workers = Processes(make_worker, arguments, count, advice)

    def __enter__(self) -> WorkerPool[AnyJob, Result]:
        try:
            self._workers.start()
        except BaseException:
            self._workers.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.close()

    def run(self, jobs: Sequence[AnyJob]) -> Iterator[tuple[int, Result]]:
        """Run all jobs and yield (index of the job, its result) as they are done.

        Raises `UserError` if a process dies and its job cannot be run elsewhere.
        """
        waiting, running = iter(enumerate(jobs)), dict[Future[Any], int]()
        while True:
            for index, job in islice(waiting, max(0, self._workers.limit - len(running))):
                running[self._workers.submit(job)] = index
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                yield index, self._workers.result(jobs[index], future)


def _cluster(
    make_worker: Callable[..., Worker[Any, Any]],
    arguments: tuple[Any, ...],
    address: str,
    workers: int | None,
    advice: str,
) -> Workers:
    """Return the workers of a Ray cluster. Ray is imported here, since it is large and optional."""
    if find_spec("ray") is None:
        raise UserError(
            '--ray needs Ray, which is not installed; run: pip install "ttm-policy-stack[cluster]"'
        )
    module = import_module("ttm.sim.workers.cluster")
    made: Workers = module.Cluster(make_worker, arguments, address, workers, advice)
    return made
