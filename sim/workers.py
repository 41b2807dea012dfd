"""Jobs shared among workers: this process, processes of this machine, or a Ray cluster.

The result of a job depends on that job alone, not on who runs it. To that end torch runs on one
thread in every worker, since sums over several threads round differently.
"""

from __future__ import annotations

import atexit
import hashlib
import multiprocessing
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from importlib import import_module, resources
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from tyro.conf import arg

from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError
from ttm.sim.tasks.table import GROUP_DESCRIPTIONS, TASK_DESCRIPTIONS

TASK = arg(
    metavar="TASK ...",
    help="What is asked for, --episodes times each: tasks of --env, its groups of tasks, or all. "
    f"The kitchen has {TASK_DESCRIPTIONS}; {GROUP_DESCRIPTIONS}.",
)
"""`--task` of commands that run episodes."""
VARY = arg(
    metavar="NAME=LEVEL ...",
    help="What varies beside the initial state, at levels 1 to 3, such as camera=1 light=2; a LEVEL alone is "
    "for all that the environment can vary but words. In the kitchen: camera, light, hue, noise, texture, "
    "pause (the robot is held for a while), rate (of cues), decoy (cues that do not count), words "
    "(paraphrases, which are kept for evaluation: ttm collect refuses them), clutter (more objects), start "
    "(of robot and head), physics (friction and mass), latency (of observations), frames (that freeze).",
)
RAY = arg(
    metavar="ADDRESS",
    help="Let the Ray cluster that this machine is part of run the episodes: auto, or HOST:PORT as ray "
    "start prints it. The result does not depend on it.",
)
"""`--ray` of commands that run episodes."""

CODE = ("ttm.policy", "ttm.datasets", "ttm.sim")
SOURCES = ("*.py", "*.xml")
"""Files of these packages that decide what happens: code, and MuJoCo's scenes."""
PACKAGES = (
    "torch", "numpy", "mujoco", "mink", "daqp", "gymnasium", "gymnasium-robotics", "openvino", "h5py",
    "imageio-ffmpeg", "efficientnet-pytorch",
)  # fmt: skip


def software() -> dict[str, str | None]:
    """Return what the bytes of a result depend on beside the job: name -> version on this machine."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "the code of ttm": _code(), "MUJOCO_GL": os.environ.get("MUJOCO_GL")}


def require_same_software(wanted: Mapping[str, str | None]) -> None:
    """Raise `UserError` if this machine differs from `wanted`, that of the machine with the command."""
    for name, here in software().items():
        if here != wanted.get(name):
            raise UserError(
                f"{name} is {here} there, but {wanted.get(name)} where the command runs, so that results "
                "could differ; install the same on both"
            )


def _code() -> str:
    """Return a hash of the files that `SOURCES` names."""
    digest = hashlib.sha256()
    for package in CODE:
        folder = Path(str(resources.files(package)))
        for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def usable_cores() -> int:
    """Return how many cores this process may use; a container may have fewer than its machine."""
    return len(os.sched_getaffinity(0))


class Job(Protocol):
    """What a worker does at once, such as an episode. It is a dataclass, and can be pickled."""

    @property
    def folder(self) -> Path | None:
        """Where the files that the job makes go, or None if it makes none."""


class Worker(Protocol):
    """What runs jobs. A process holds one, since making it takes longer than running a job."""

    def run(self, job: Any) -> Any:
        """Run one job. The result depends on the job alone, and can be pickled."""

    def close(self) -> None:
        """Free what the worker holds, such as its environment."""


MakeWorker = Callable[..., Worker]
"""A class or function at the top level of a module."""

_held: Worker | None = None
"""The worker of this process, if it is one that others gave it."""


def holds_worker() -> bool:
    """Return whether this process holds a worker."""
    return _held is not None


def hold_worker(make_worker: MakeWorker, arguments: tuple[Any, ...]) -> None:
    """Make the worker of this process. Torch runs on one thread from now on."""
    global _held
    torch.set_num_threads(1)
    _held = make_worker(*arguments)


def run_held(job: Any) -> Any:
    """Run a job with the worker of this process."""
    assert _held is not None
    try:
        return _held.run(job)
    finally:
        # Exit handlers run in reverse order of registration. A renderer must be freed before EGL,
        # whose handler MuJoCo registers when it first renders.
        atexit.unregister(_held.close)
        atexit.register(_held.close)


class Workers(ABC):
    """Workers in one place: this process, processes of this machine, a cluster."""

    limit: int
    """The number of jobs that may be handed over before one is done."""

    def start(self) -> None:  # noqa: B027  (optional)
        """Make ready for jobs. `close` follows even if this raises an exception."""

    @abstractmethod
    def submit(self, job: Job) -> Future[Any]:
        """Hand over a job."""

    def result(self, job: Job, future: Future[Any]) -> Any:
        """Return the result of a job whose future is done, with its files in the job's folder."""
        return future.result()

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


class ThisProcess(Workers):
    """A single worker, in this process. Torch runs on one thread from `start` to `close`."""

    limit = 1

    def __init__(self, make_worker: MakeWorker, arguments: tuple[Any, ...]):
        self._make_worker, self._arguments = make_worker, arguments
        self._stack = ExitStack()

    def start(self) -> None:
        self._stack.enter_context(cpu_threads(1))
        self._worker = self._stack.enter_context(closing(self._make_worker(*self._arguments)))

    def submit(self, job: Job) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(self._worker.run(job))
        return done

    def close(self) -> None:
        self._stack.close()


class Processes(Workers):
    """A worker in each of several processes, which start with the first jobs."""

    def __init__(
        self, make_worker: MakeWorker, arguments: tuple[Any, ...], count: int, advice: str
    ):
        self._count, self._advice = count, advice
        self.limit = 2 * count  # the next job of each process waits for it
        context = multiprocessing.get_context("spawn")  # neither torch nor EGL survives a fork
        self._pool = ProcessPoolExecutor(count, context, _start, (make_worker, arguments))

    def submit(self, job: Job) -> Future[Any]:
        return self._pool.submit(run_held, job)

    def result(self, job: Job, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process died, perhaps for lack of memory (each of {self._count} needs "
                f"about 1 GB); try fewer: --workers {max(1, self._count // 2)}{self._advice}"
            ) from error

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start(make_worker: MakeWorker, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent answers
    hold_worker(make_worker, arguments)


class WorkerPool:
    """Workers that share jobs; a context manager.

    make_worker: what each process calls once, with `arguments`; a `Path` in them is that of a file, of which
    other machines get a copy. workers: the number of processes, of which a single one is this process; with
    Ray, the most jobs at once; None for one for each core that may be used here, or of the cluster. ray: the
    address of a Ray cluster whose machines run the jobs. most: the number of jobs, if it is known. advice:
    what to add to the error message if a process dies.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
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
            if find_spec("ray") is None:
                raise UserError('--ray needs Ray; run: pip install "ttm-policy-stack[cluster]"')
            # Imported here, since Ray is large and optional.
            make_cluster = import_module("ttm.sim.cluster").Cluster
            self._workers = make_cluster(make_worker, arguments, ray, workers, advice)
        elif count == 1:
            self._workers = ThisProcess(make_worker, arguments)
        else:
            self._workers = Processes(make_worker, arguments, count, advice)

    def __enter__(self) -> WorkerPool:
        try:
            self._workers.start()
        except BaseException:
            self._workers.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.close()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
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
