"""Sharing jobs among worker processes, each of which holds an environment of its own.

The result of a job depends on that job alone, not on the number of processes. To that end torch runs
on one thread in every process, since sums over several threads round differently.
"""

from __future__ import annotations

import atexit
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from typing import Any, Generic, Protocol, TypeVar

import torch

from ttm.policy.errors import UserError
from ttm.policy.run.threads import cpu_threads

Job = TypeVar("Job")
Result = TypeVar("Result")
JobIn = TypeVar("JobIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class Worker(Protocol[JobIn, ResultOut]):
    """What a process holds, since making it takes longer than running a job."""

    def run(self, job: JobIn) -> ResultOut:
        """Run one job."""

    def close(self) -> None:
        """Free what the worker holds, such as its environment."""


class WorkerPool(Generic[Job, Result]):
    """Worker processes, each with a worker of its own; a context manager.

    Parameters
    ----------
    make_worker : callable
        A class or function at the top level of a module. Each process calls it once.
    arguments : tuple
        What it is called with.
    workers : int
        Number of processes. A single one is this process itself.
    advice : str
        What to add to the error message if a process dies.
    """

    def __init__(
        self,
        make_worker: Callable[..., Worker[Job, Result]],
        arguments: tuple[Any, ...],
        *,
        workers: int,
        advice: str = "",
    ):
        self._make_worker, self._arguments = make_worker, arguments
        self._workers, self._advice = workers, advice
        self._stack = ExitStack()
        self._here: Worker[Job, Result] | None = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> WorkerPool[Job, Result]:
        if self._workers == 1:
            self._stack.enter_context(cpu_threads(1))
            self._here = self._stack.enter_context(closing(self._make_worker(*self._arguments)))
            return self
        context = multiprocessing.get_context("spawn")  # neither torch nor EGL survives a fork
        self._pool = ProcessPoolExecutor(
            self._workers, context, _start_worker, (self._make_worker, self._arguments)
        )
        self._stack.callback(self._pool.shutdown, wait=True, cancel_futures=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Run all jobs and yield (index of the job, its result) as they are done.

        Jobs and results are pickled. Raises `UserError` if a process dies, for instance because it
        was killed for lack of memory.
        """
        if self._here is not None:
            for index, job in enumerate(jobs):
                yield index, self._here.run(job)
            return
        assert self._pool is not None
        try:
            submitted = {self._pool.submit(_run_job, job): index for index, job in enumerate(jobs)}
            for future in as_completed(submitted):
                yield submitted[future], future.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process died, perhaps for lack of memory (each of {self._workers} needs "
                f"about 1 GB); try fewer: --workers {max(1, self._workers // 2)}{self._advice}"
            ) from error


_worker: Worker[Any, Any] | None = None
"""The worker of this process, if it is one of a pool."""


def _start_worker(make_worker: Callable[..., Worker[Any, Any]], arguments: tuple[Any, ...]) -> None:
    global _worker
    # Ctrl-C reaches all processes, and the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _worker = make_worker(*arguments)


def _run_job(job: Any) -> Any:
    assert _worker is not None
    try:
        return _worker.run(job)
    finally:
        # Exit handlers run in reverse order of registration. A renderer must be freed before EGL,
        # whose handler MuJoCo registers when it first renders.
        atexit.unregister(_worker.close)
        atexit.register(_worker.close)
