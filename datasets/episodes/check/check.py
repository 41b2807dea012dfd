"""`ttm data check`: names every fault of every episode, and how to mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import h5py
import tyro
from rich.console import Console

from ttm.datasets.check.faults import (
    DELETE,
    Demo,
    Fault,
    clock_faults,
    length_faults,
    structure_faults,
    value_faults,
)
from ttm.datasets.check.frame_faults import frame_faults
from ttm.datasets.episode_dataset import find_files, spec_difference
from ttm.datasets.episode_reader import demo_names, read_masks, read_stored_spec
from ttm.datasets.infer_spec import infer_spec
from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class Report:
    """What a check found, and how much it looked at."""

    faults: tuple[Fault, ...]
    num_files: int
    num_episodes: int
    num_ticks: int

    @property
    def num_errors(self) -> int:
        """Faults that fail the check."""
        return sum(not fault.is_warning for fault in self.faults)

    @property
    def num_warnings(self) -> int:
        """Things to look at."""
        return len(self.faults) - self.num_errors


@dataclass(frozen=True)
class DataCheckCommand:
    """Check every episode of a data set and name each fault with its file, demo, tick and cure.

    Looks for: files that are truncated or cannot be read, missing datasets, lengths that differ, NaN, actions
    outside their limits, frames that repeat or do not decode, timestamps that run backwards, repeat or leave
    gaps, specs that differ between files, masks that name demos which are not there.

    Exits with 0 if the data set is clean (warnings allowed), 1 if it has faults, 2 if there is none.
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    def run(self) -> int:
        report = check_dataset(self.path)
        print_report(report, Console())
        return 1 if report.num_errors else 0


def check_dataset(path: str | Path) -> Report:
    """Look through every file of a data set; a `path` that means none is a `UserError`."""
    files = find_files(path)
    faults: list[Fault] = []
    specs = {file: spec for file in files if (spec := _stored_spec(file)) is not None}
    spec = next(iter(specs.values()), None) or _infer_leniently(files)
    episodes = ticks = 0
    for file in track(files, "checking"):
        found, lengths = _check_file(file, spec, specs)
        faults += found
        episodes, ticks = episodes + len(lengths), ticks + sum(lengths)
    faults += _leftovers(files)
    return Report(tuple(faults), len(files), episodes, ticks)


def print_report(report: Report, console: Console) -> None:
    """Faults by file, then one line that sums up."""
    current: Path | None = None
    for fault in report.faults:
        if fault.path != current:
            current = fault.path
            console.print(f"[bold]{current}[/bold]", soft_wrap=True)
        label = "[yellow]warning[/yellow]" if fault.is_warning else "[red]fault[/red]  "
        place = " ".join(
            [fault.demo or "file", *([] if fault.tick is None else [f"tick {fault.tick}"])]
        )
        console.print(f"  {label} {place}: ", end="", highlight=False)
        console.print(
            f"{fault.what} -> {fault.mend}", markup=False, soft_wrap=True, highlight=False
        )
    colour = "red" if report.num_errors else "green"
    scope = f"{report.num_episodes} episodes ({report.num_ticks} ticks) of {report.num_files} files"
    verdict = f"[{colour}]{report.num_errors} faults[/{colour}], {report.num_warnings} warnings"
    console.print(f"{verdict} in {scope}", highlight=False)


def _check_file(
    path: Path, spec: PolicySpec | None, specs: dict[Path, PolicySpec]
) -> tuple[list[Fault], list[int]]:
    """The faults of one file, and the length of each of its demos."""
    faults: list[Fault] = []
    lengths: list[int] = []
    try:
        with h5py.File(path, "r") as file:
            names = demo_names(file)
            faults += _file_faults(file, path, names, spec, specs)
            for name in names:
                group = file["data"][name]
                lengths.append(_length(group))
                if spec is not None:
                    faults += _demo_faults(
                        Demo(path, name, group, specs.get(path, spec), path not in specs)
                    )
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        faults.append(
            Fault(
                path, None, None, f"HDF5 cannot read it ({error})", "delete or re-record this file"
            )
        )
    return faults, lengths


def _demo_faults(demo: Demo) -> Iterator[Fault]:
    """Values are looked at only where the structure stands, or one fault would be named many times."""
    broken = list(structure_faults(demo))
    yield from broken
    if broken:
        return
    checks = [length_faults(demo), value_faults(demo), clock_faults(demo)]
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


def _file_faults(
    file: Any,
    path: Path,
    names: Sequence[str],
    spec: PolicySpec | None,
    specs: dict[Path, PolicySpec],
) -> Iterator[Fault]:
    if not names:
        yield Fault(
            path,
            None,
            None,
            "it has no demo (data/demo_0, …)",
            "delete it, or give a robomimic file",
        )
    if spec is None:
        yield Fault(
            path,
            None,
            None,
            "no spec can be inferred from any file",
            "mend or delete the files named here",
        )
    yield from _spec_faults(file, path, spec, specs)
    masks = read_masks(file)
    for key, members in masks.items():
        for name in sorted(set(members) - set(names)):
            yield Fault(
                path,
                name,
                None,
                f"mask/{key} names it, but it is not there",
                f"take it out of mask/{key}",
            )
    for name in sorted(set(masks.get("train", [])) & set(masks.get("valid", []))):
        what = "it is in mask/train and in mask/valid"
        yield Fault(
            path, name, None, what, "take it out of one: validation would flatter", is_warning=True
        )


def _spec_faults(
    file: Any, path: Path, spec: PolicySpec | None, specs: dict[Path, PolicySpec]
) -> Iterator[Fault]:
    if path in specs and spec is not None:
        difference = spec_difference(spec, specs[path])
        if difference:
            yield Fault(
                path,
                None,
                None,
                f"another spec: {difference}",
                "keep the two kinds in different folders",
            )
    elif specs:
        why = (
            "its ttm_spec is damaged"
            if "ttm_spec" in file["data"].attrs
            else "it carries no ttm_spec, others do"
        )
        yield Fault(path, None, None, why, "re-record it, or keep it in another folder")


def _leftovers(files: Sequence[Path]) -> Iterator[Fault]:
    for folder in sorted({file.parent for file in files}):
        for partial in sorted(folder.glob(".*.partial")):
            what = "an episode that was never finished: it is being recorded, or its recorder was killed"
            yield Fault(
                partial, None, None, what, "delete it if no recorder is running", is_warning=True
            )


def _stored_spec(path: Path) -> PolicySpec | None:
    try:
        with h5py.File(path, "r") as file:
            return read_stored_spec(file)
    except (OSError, RuntimeError, KeyError, UserError):
        return None  # named when the file's own turn comes


def _infer_leniently(files: Sequence[Path]) -> PolicySpec | None:
    """The spec of most demos: one broken demo must not keep the others from being checked."""
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
    try:
        with h5py.File(path, "r") as file:
            found = [(name, file["data"][name].get("actions")) for name in demo_names(file)]
            return [
                ((path, name), a.shape[1])
                for name, a in found
                if isinstance(a, h5py.Dataset) and a.ndim == 2
            ]
    except (OSError, RuntimeError, KeyError):
        return []


def _length(group: Any) -> int:
    actions = group.get("actions")
    return len(actions) if isinstance(actions, h5py.Dataset) else 0
