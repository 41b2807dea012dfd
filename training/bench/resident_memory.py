"""The memory of a process."""

from __future__ import annotations

from pathlib import Path


def resident_mb(process: int | None = None) -> float | None:
    """Return the resident memory of a process (VmRSS) in megabytes; None where it is unknown.

    process: its number; None for this process.
    """
    status = Path(f"/proc/{process or 'self'}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("VmRSS")), None)
    return None if line is None else int(line.split()[1]) / 1e3
