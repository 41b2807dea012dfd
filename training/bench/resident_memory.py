"""The memory of this process."""

from __future__ import annotations

from pathlib import Path


def resident_mb() -> float | None:
    """Return the resident memory of this process (VmRSS) in megabytes; None where it is unknown."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1e3
