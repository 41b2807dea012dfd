"""Settings of PyTorch that it reads when it is imported; this module does not import it."""

from __future__ import annotations

import os


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
