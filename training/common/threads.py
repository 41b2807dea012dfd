"""Threads of PyTorch, and settings that it reads when it is imported; this does not import it."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use; a container may have fewer than its machine."""
    return len(os.sched_getaffinity(0))


def wait_passively() -> None:
    """Make waiting threads sleep, unless the environment says otherwise.

    Waiting threads that spin would take the core from those that prepare the next batch. OpenMP
    reads the setting once, when torch is imported; this module imports no torch. Child processes
    inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def hide_hints() -> None:
    """Hide warnings of PyTorch's C++ code, unless the environment says otherwise.

    They are hints to programmers, which users of several devices would get at each start.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
