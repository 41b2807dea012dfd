"""How much memory can be allocated, within the limits of the machine and of a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_memory_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return how much memory can be allocated without swapping, and without leaving a container's limit.

    Limits are those of the control groups (versions 1 and 2) of this process, by which containers,
    systemd and SLURM set them. Pages of files that the kernel can drop count as free.

    proc, groups: where the kernel tells about processes and control groups.
    """
    return max(0, min([_machine(proc), *_free_in_groups(proc, groups)]))


def _machine(proc: Path) -> int:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _free_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is free in each group of this process that has a limit, and in those around it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = groups, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top = groups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # Within a container, the path may be that of the host; the container's own group is the top.
        for folder in (inner, *inner.parents):
            if (free := _free(top / folder, *names)) is not None:
                yield free


def _free(group: Path, limit: str, usage: str, prefix: str) -> int | None:
    """Return what is free in one group; None if it has no limit, or is not there."""
    try:
        most = int((group / limit).read_text())  # "max" is no number
        used = int((group / usage).read_text())
        pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        counts = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return None
    files = (counts.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    return most - used + sum(files)
