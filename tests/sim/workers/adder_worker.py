"""A worker for `test_pool.py` and `test_cluster.py`, in a module that other processes can import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Sum:
    """A job: to add a number to that of the worker, and to write the sum into a file in `folder`."""

    number: int
    folder: Path | None = None
    kills: bool = False
    """Whether to kill the process, as a lack of memory does."""


class Adder:
    """Adds its own number, which stands in a file."""

    def __init__(self, number: Path):
        self.number = int(number.read_text())

    def run(self, job: Sum) -> tuple[int, int, int]:
        """Return the sum, the process and the number of torch's threads."""
        if job.kills:
            os._exit(1)
        result = job.number + self.number
        if job.folder is not None:
            (job.folder / f"{job.number}.txt").write_text(str(result))
        return result, os.getpid(), torch.get_num_threads()

    def close(self) -> None:
        """There is nothing to free."""
