"""How threads of OpenMP wait, which is set before torch is imported."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Make waiting threads sleep, unless the environment says otherwise.

    Waiting threads that spin would take the core from those that prepare the next batch. OpenMP
    reads the setting once, when torch is imported; this module imports no torch. Child processes
    inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
