"""Checking of data sets: looks through every file and every demo, and collects their faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from ttm.datasets.check.demo_faults import (
    clock_faults,
    length_faults,
    structure_faults,
    value_faults,
    weight_faults,
)
from ttm.datasets.check.fault import DELETE, Demo, Fault
from ttm.datasets.check.file_faults import file_faults, leftovers
from ttm.datasets.check.frame_faults import frame_faults
from ttm.datasets.episode_dataset import find_files
from ttm.datasets.episode_file import demo_names, read_stored_spec
from ttm.datasets.progress import track
from ttm.datasets.spec_inference import infer_spec
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class CheckReport:
    """What a check found, and how much it looked at."""

    faults: tuple[Fault, ...]
    num_files: int
    num_episodes: int
    num_ticks: int

    @property
    def num_errors(self) -> int:
        """The number of faults that fail the check."""
        return sum(not fault.is_warning for fault in self.faults)

    @property
    def num_warnings(self) -> int:
        """The number of faults that do not fail the check."""
        return len(self.faults) - self.num_errors


def check_dataset(path: str | Path) -> CheckReport:
    """Look for faults in every file of a data set: an HDF5 file, a folder, or a glob.

    Damaged files are part of the report. Raises `UserError` only if there is no file.
    """
    files = find_files(path)
    faults: list[Fault] = []
    specs = {file: spec for file in files if (spec := _stored_spec(file)) is not None}
    spec = next(iter(specs.values()), None) or _infer_leniently(files)
    episodes = ticks = 0
    for file in track(files, "checking"):
        found, lengths = _check_file(file, spec, specs)
        faults += found
        episodes, ticks = episodes + len(lengths), ticks + sum(lengths)
    faults += leftovers(files)
    return CheckReport(tuple(faults), len(files), episodes, ticks)


def _check_file(
    path: Path, spec: PolicySpec | None, specs: dict[Path, PolicySpec]
) -> tuple[list[Fault], list[int]]:
    """Return the faults of one file, and the length of each of its demos."""
    faults: list[Fault] = []
    lengths: list[int] = []
    try:
        with h5py.File(path, "r") as file:
            names = demo_names(file)
            faults += file_faults(file, path, names, spec, specs)
            for name in names:
                group = file["data"][name]
                lengths.append(_length(group))
                if spec is not None:
                    faults += _demo_faults(
                        Demo(path, name, group, specs.get(path, spec), path not in specs)
                    )
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        what = f"HDF5 cannot read it ({error})"
        faults.append(Fault(path, None, None, what, "delete or re-record this file"))
    return faults, lengths


def _demo_faults(demo: Demo) -> Iterator[Fault]:
    """Find the faults of a demo.

    Its values are looked at only if its structure is right, so that one fault is named once.
    """
    broken = list(structure_faults(demo))
    yield from broken
    if broken:
        return
    checks = [length_faults(demo), value_faults(demo), weight_faults(demo)]
    checks += [clock_faults(demo)]
    checks += [frame_faults(demo, camera) for camera in demo.spec.cameras]
    for check in checks:
        try:
            yield from check
        except (OSError, RuntimeError) as error:
            yield demo.fault(f"its data cannot be read ({error})", DELETE)
    if not demo.group.attrs.get("language_instruction") and not demo.inferred:
        yield demo.fault(
            "it has no instruction", "set the attribute language_instruction", is_warning=True
        )


def _stored_spec(path: Path) -> PolicySpec | None:
    """Return the spec that a file carries, or None if it has none or a damaged one."""
    try:
        with h5py.File(path, "r") as file:
            return read_stored_spec(file)
    except (OSError, RuntimeError, KeyError, UserError):
        return None  # `_check_file` reports what is wrong


def _infer_leniently(files: Sequence[Path]) -> PolicySpec | None:
    """Return the spec inferred from the demos that allow it, or None.

    The demos are those with the most frequent number of action dimensions. If the first of them is
    damaged, the next one is tried, so that a damaged demo does not prevent the check of the others.
    """
    sizes = {demo: size for file in files for demo, size in _action_sizes(file)}
    if not sizes:
        return None
    usual = Counter(sizes.values()).most_common(1)[0][0]
    demos = [demo for demo, size in sizes.items() if size == usual]
    for first in range(len(demos)):
        try:
            return infer_spec(demos[first:])
        except (OSError, RuntimeError, KeyError, SyntaxError, UserError):
            continue
    return None


def _action_sizes(path: Path) -> list[tuple[tuple[Path, str], int]]:
    """Return the demos of a file with their number of action dimensions, where it can be read."""
    try:
        with h5py.File(path, "r") as file:
            found = [(name, file["data"][name].get("actions")) for name in demo_names(file)]
            return [
                ((path, name), actions.shape[1])
                for name, actions in found
                if isinstance(actions, h5py.Dataset) and actions.ndim == 2
            ]
    except (OSError, RuntimeError, KeyError):
        return []


def _length(group: Any) -> int:
    actions = group.get("actions")
    return len(actions) if isinstance(actions, h5py.Dataset) and actions.shape else 0
