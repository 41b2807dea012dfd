"""Workers of this machine: in this process, or one in each of several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.run.threads import cpu_threads
from ttm.sim.workers.worker import Job, Worker, hold_worker, run_held


class ThisProcess:
    """A single worker, in this process; see `ttm.sim.workers.pool.Workers`."""

    limit = 1

    def __init__(self, make_worker: Callable[..., Worker[Any, Any]], arguments: tuple[Any, ...]):
        self._make_worker, self._arguments = make_worker, arguments
        self._stack = ExitStack()

    def start(self) -> None:
        """Make the worker. Torch runs on one thread until `close`."""
        self._stack.enter_context(cpu_threads(1))
        self._worker = self._stack.enter_context(closing(self._make_worker(*self._arguments)))

    def submit(self, job: Job) -> Future[Any]:
        """Run a job, and return its result in a future."""
        done: Future[Any] = Future()
        done.set_result(self._worker.run(job))
        return done

    def result(self, job: Job, future: Future[Any]) -> Any:
        """Return what the worker returned."""
        return future.result()

    def close(self) -> None:
        """Close the worker."""
        self._stack.close()


class Processes:
    """A worker in each of several processes; see `ttm.sim.workers.pool.Workers`."""

    def __init__(
        self,
        make_worker: Callable[..., Worker[Any, Any]],
        arguments: tuple[Any, ...],
        count: int,
        advice: str,
    ):
        self._count, self._advice = count, advice
        self.limit = 2 * count  # the next job of each process waits for it
        context = multiprocessing.get_context("spawn")  # neither torch nor EGL survives a fork
        self._pool = ProcessPoolExecutor(count, context, _start, (make_worker, arguments))

    def start(self) -> None:
        """Do nothing: the processes start with the first jobs."""

    def submit(self, job: Job) -> Future[Any]:
        """Hand a job over to the processes."""
        return self._pool.submit(run_held, job)

    def result(self, job: Job, future: Future[Any]) -> Any:
        """Return what a worker returned. Raises `UserError` if a process died."""
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process died, perhaps for lack of memory (each of {self._count} needs "
                f"about 1 GB); try fewer: --workers {max(1, self._count // 2)}{self._advice}"
            ) from error

    def close(self) -> None:
        """End the processes after the jobs that they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start(make_worker: Callable[..., Worker[Any, Any]], arguments: tuple[Any, ...]) -> None:
    # Ctrl-C reaches all processes, and the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold_worker(make_worker, arguments)
