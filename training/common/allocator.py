"""Keeps freed memory in the process, for training on CPUs with glibc.

glibc gives large blocks back to the kernel as soon as they are freed, and the kernel clears every
page when it hands it out again: with activations of tens of megabytes that takes a quarter of a
training step.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Numbers of mallopt(3)'s parameters."""


def keep_freed_memory() -> None:
    """Large blocks come from the heap, and the heap never shrinks. Does nothing without glibc's
    mallopt."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 * 2**20)
