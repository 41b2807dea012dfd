"""What a worker is and what its jobs are, and the one worker that a process may hold."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

JobIn = TypeVar("JobIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class Job(Protocol):
    """What a worker does at once, such as an episode. It is a dataclass, and can be pickled."""

    @property
    def folder(self) -> Path | None:
        """Where the files that the job makes go, or None if it makes none."""


class Worker(Protocol[JobIn, ResultOut]):
    """What runs jobs. A process holds one, since making it takes longer than running a job."""

    def run(self, job: JobIn) -> ResultOut:
        """Run one job. The result depends on the job alone, and can be pickled."""

    def close(self) -> None:
        """Free what the worker holds, such as its environment."""


_held: Worker[Any, Any] | None = None
"""The worker of this process, if it is one that others gave it."""


def holds_worker() -> bool:
    """Return whether this process holds a worker."""
    return _held is not None


def hold_worker(make_worker: Callable[..., Worker[Any, Any]], arguments: tuple[Any, ...]) -> None:
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
