"""A worker for `test_processes.py`, in a module that other processes can import."""

from __future__ import annotations

import os

import torch


class Adder:
    """Adds its own number. A job of -1 kills the process, as a lack of memory does."""

    def __init__(self, number: int):
        self.number = number

    def run(self, job: int) -> tuple[int, int, int]:
        """Return the sum, the process and the number of torch's threads."""
        if job == -1:
            os._exit(1)
        return job + self.number, os.getpid(), torch.get_num_threads()

    def close(self) -> None:
        """There is nothing to free."""
