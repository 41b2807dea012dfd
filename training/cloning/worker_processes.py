"""Batches made by worker processes, for frames that are read and decoded at each step."""

from __future__ import annotations

import gc
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

from ttm.policy.errors import UserError, first_line
from ttm.sim.workers.cores import usable_cores

Order = TypeVar("Order")
Made = TypeVar("Made")

AHEAD = 2
"""Batches that each worker prepares ahead of the training."""
MOST_WORKERS = 8
"""The most workers that are started unless the user asks for more."""
SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps the batches on their way from a worker to the training."""


def default_workers(batch_bytes: int, processes: int = 1, apart: int | None = None) -> int:
    """Return the number of workers for frames beyond memory: half of the cores, 1 to 8.

    Fewer, or none, if their batches do not fit into the shared memory of the machine, which so many
    `processes` of a training share.

    apart: batches from one window of a section to the next, None without sections. The number is a
    divisor of it, so that a section is always read by the same worker, which has its frames at hand.
    """
    wanted = max(1, min(usable_cores() // processes // 2, MOST_WORKERS))
    most = min(wanted, _fitting_workers(batch_bytes) // processes)
    divisors = (count for count in range(1, most + 1) if not (apart or 0) % count)
    return max(divisors, default=0)


def require_room(workers: int, batch_bytes: int) -> None:
    """Raise `UserError` if the batches of the workers do not fit into the shared memory."""
    if workers > _fitting_workers(batch_bytes):
        needed, free = _needed(workers, batch_bytes), _free_shared_memory()
        raise UserError(
            f"--workers {workers} need {needed / 2**20:.0f} MiB of shared memory, and {SHARED_MEMORY} has "
            f"{free / 2**20:.0f} MiB; give a container more (docker run --shm-size 2g), or take fewer "
            "--workers or a smaller --batch-size"
        )


def made_by_workers(
    make: Callable[[Order], Made], orders: Iterable[Order], workers: int, *, pin: bool = False
) -> Iterator[Made]:
    """Yield `make(order)` for each of `orders`, in their order, made by `workers` processes.

    The processes are forked, so that they share what `make` reads. Raises the `UserError` that
    `make` raises, and one if a process is killed.

    pin: whether to call `pin_memory` of what was made, in a thread of this process, for a GPU.
    """
    loader = DataLoader(
        _Task(make),
        sampler=orders,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=_unchanged,
        pin_memory=pin,
        worker_init_fn=_begin,
        multiprocessing_context="fork",
    )
    made = _started(loader)
    while True:
        try:
            result = next(made)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise UserError(
                f"a worker process that makes batches has ended ({first_line(error)}); was it "
                "killed for lack of memory? Go on with --resume, and with fewer --workers"
            ) from error
        if isinstance(result, UserError):
            raise result
        yield result


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers.

    The signal that a worker has ended is then left alone, so that it is told where the next batch is
    asked for, and not at any place in the training.
    """
    if threading.current_thread() is not threading.main_thread():
        return iter(loader)
    previous = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, previous)


class _Task(Dataset[Any], Generic[Order, Made]):
    """What a worker does. Errors of users are returned, since an exception would lose its type."""

    def __init__(self, make: Callable[[Order], Made]) -> None:
        self._make = make

    def __getitem__(self, order: Order) -> Made | UserError:
        try:
            return self._make(order)
        except UserError as error:
            return error


def _needed(workers: int, batch_bytes: int) -> int:
    return (AHEAD * workers + 1) * batch_bytes


def _fitting_workers(batch_bytes: int) -> int:
    return max(0, (_free_shared_memory() // max(batch_bytes, 1) - 1) // AHEAD)


def _free_shared_memory() -> int:
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # it is not there
        return 0


def _unchanged(made: Any) -> Any:
    return made


def _begin(worker: int) -> None:
    """Leave to the training Ctrl-C, which reaches all processes of a terminal, and its garbage.

    What finalizes a file or a graphics context may end a process that was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
