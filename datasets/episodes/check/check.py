"""Checking of data sets: looks through every file and every demo, and collects their faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.datasets.access.links import find_member
from ttm.datasets.access.unreadable import one_line
from ttm.datasets.check.demo_faults import (
    clock_faults,
    fact_faults,
    length_faults,
    structure_faults,
    value_faults,
    weight_faults,
)
from ttm.datasets.check.fault import Demo, Fault
from ttm.datasets.check.file_faults import file_faults, leftovers
from ttm.datasets.check.frame_faults import frame_faults
from ttm.datasets.description import NOT_IN_ALL, Description, describe_bare, describe_stored
from ttm.datasets.duplicates import held_apart, same_episodes
from ttm.datasets.episode_dataset import open_dataset
from ttm.datasets.episode_file import READ_ERRORS, demo_group, demo_names, open_file
from ttm.datasets.index.opening import stored_spec
from ttm.datasets.instructions import stored_embedding
from ttm.datasets.layouts.find_files import find_files
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.members import Member
from ttm.datasets.observations.structure import LEAVE_OUT
from ttm.datasets.progress import track
from ttm.datasets.spec_inference import survey
from ttm.datasets.statistics import dataset_statistics, require_motion
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class CheckReport:
    """What a check found, and how much it looked at."""

    faults: tuple[Fault, ...]
    num_files: int
    num_episodes: int
    num_ticks: int
    members: tuple[Member, ...] = ()
    """Every member of `obs`, used or not."""

    @property
    def num_errors(self) -> int:
        """The number of faults that fail the check."""
        return sum(not fault.is_warning for fault in self.faults)

    @property
    def num_warnings(self) -> int:
        """The number of faults that do not fail the check."""
        return len(self.faults) - self.num_errors


def check_dataset(path: str | Path, choices: Choices | None = None) -> CheckReport:
    """Look for faults in every file of a data set: an HDF5 file, a folder, or a glob.

    Damaged files are part of the report. There is at least one fault if `open_dataset` with the
    same choices would refuse the data set. Raises `UserError` if there is no file, or if a choice
    does not fit the data.
    """
    choices = choices or Choices()
    files = find_files(path, allow_external=choices.allow_external)
    specs = {file: spec for file in files if (spec := _stored_spec(file, choices)) is not None}
    described = _description(files, specs, choices)
    faults: list[Fault] = []
    episodes = ticks = 0
    for file in track(files, "checking"):
        found, lengths = _check_file(file, described, specs, choices)
        faults += found
        episodes, ticks = episodes + len(lengths), ticks + sum(lengths)
    faults += leftovers(files)
    for member in described.members if described else ():
        if member.reason == NOT_IN_ALL:
            what = f"obs/{member.name} is {NOT_IN_ALL}, and is not used"
            remedy = "write it in all demos if the policy is to see it"
            faults.append(Fault(Path(path), None, None, what, remedy, is_warning=True))
    if all(fault.is_warning for fault in faults):
        faults += _opening_faults(path, choices)
    return CheckReport(
        tuple(faults), len(files), episodes, ticks, described.members if described else ()
    )


def _check_file(
    path: Path,
    described: Description | None,
    specs: dict[Path, PolicySpec],
    choices: Choices,
) -> tuple[list[Fault], list[int]]:
    """Return the faults of one file, and the length of each of its demos."""
    faults: list[Fault] = []
    lengths: list[int] = []
    allowed = choices.allow_external
    try:
        stored_spec(path, choices)  # says what is wrong with the file as a whole
        with open_file(path) as file:
            names = demo_names(file, allow_external=allowed)
            spec = None if described is None else described.spec
            faults += file_faults(file, path, names, spec, specs, allow_external=allowed)
            for name in names:
                found, length = _check_demo(file, path, name, described, specs, choices)
                faults += found
                lengths.append(length)
    except UserError as error:
        faults.append(Fault.of_error(path, None, error))
    return faults, lengths


def _check_demo(
    file: Any,
    path: Path,
    name: str,
    described: Description | None,
    specs: dict[Path, PolicySpec],
    choices: Choices,
) -> tuple[list[Fault], int]:
    """Return the faults of one demo, and its length."""
    try:
        group = demo_group(file, name, allow_external=choices.allow_external)
        if described is None:
            survey([(path, name)], allow_external=choices.allow_external)  # says what is wrong
            return [], 0
        cameras = {key: each.of_file(file) for key, each in described.cameras.items()}
        spec = described.spec
        if path in specs and not choices.changes_spec:
            spec = specs[path]
        demo = Demo(path, name, group, spec, path not in specs, cameras)
        found = list(_demo_faults(demo, choices.allow_external))
        actions: Any = find_member(group, "actions", allow_external=choices.allow_external)
        return found, len(actions) if getattr(actions, "shape", None) else 0
    except UserError as error:
        return [Fault.of_error(path, name, error)], 0
    except READ_ERRORS as error:
        what = f"its data cannot be read ({one_line(error)})"
        return [Fault(path, name, None, what, LEAVE_OUT)], 0


def _demo_faults(demo: Demo, allow_external: bool) -> Iterator[Fault]:
    """Find the faults of a demo.

    Its values are looked at only if its structure is right, so that one fault is named once.
    """
    broken = list(structure_faults(demo, allow_external=allow_external))
    yield from broken
    if broken:
        return
    checks = [length_faults(demo), value_faults(demo), weight_faults(demo)]
    checks += [clock_faults(demo), fact_faults(demo)]
    checks += [frame_faults(demo, camera) for camera in demo.spec.cameras]
    for check in checks:
        try:
            yield from check
        except READ_ERRORS as error:
            yield demo.fault(f"its data cannot be read ({one_line(error)})", LEAVE_OUT)


def _stored_spec(path: Path, choices: Choices) -> PolicySpec | None:
    """Return the spec that a file carries, or None if it has none or cannot be read."""
    try:
        return stored_spec(path, choices)
    except UserError:
        return None  # `_check_file` reports what is wrong


def _description(
    files: Sequence[Path], specs: dict[Path, PolicySpec], choices: Choices
) -> Description | None:
    """Return the description of the demos that allow one; None if there are none.

    Raises `UserError` if it is a choice of the user that does not fit.
    """
    demos = [demo for file in files for demo in _demos(file, choices)]
    if specs:
        path, spec = next(iter(specs.items()))
        first = next((demo for demo in demos if demo[0] == path and _readable(demo, choices)), None)
        return describe_stored(spec, first, choices)
    try:
        return describe_bare(demos, choices)
    except UserError:
        demos = _usual([demo for demo in demos if _readable(demo, choices)], choices)
        return describe_bare(demos, choices) if demos else None


def _demos(path: Path, choices: Choices) -> list[tuple[Path, str]]:
    try:
        stored_spec(path, choices)
        with open_file(path) as file:
            names = demo_names(file, allow_external=choices.allow_external)
            return [(path, name) for name in names]
    except UserError:
        return []


def _readable(demo: tuple[Path, str], choices: Choices) -> bool:
    """Return whether a demo can be described by itself."""
    try:
        survey([demo], allow_external=choices.allow_external)
    except UserError:
        return False
    return True


def _usual(demos: Sequence[tuple[Path, str]], choices: Choices) -> list[tuple[Path, str]]:
    """Return the demos with the most frequent number of action dimensions."""
    sizes = {
        demo: survey([demo], allow_external=choices.allow_external).actions[0].shape[1]
        for demo in demos
    }
    usual = Counter(sizes.values()).most_common(1)
    return [demo for demo, size in sizes.items() if size == usual[0][0]]


def _opening_faults(path: str | Path, choices: Choices) -> Iterator[Fault]:
    """Find what training would refuse although no file by itself is at fault."""
    place = Path(path)
    try:
        episodes = open_dataset(path, choices=choices)
        copies = same_episodes(episodes)
        for episode in episodes:
            stored_embedding(episode)
        training = held_apart(episodes.filter("train"), episodes.filter("valid"))
        if len(training):
            require_motion(dataset_statistics(training).actions, training.source)
    except UserError as error:
        yield Fault.of_error(place, None, error)
        return
    for first, *others in copies:
        for copy in others:
            what = f"it is a copy of {episodes[first].path} {episodes[first].name}"
            remedy = "keep one of them; training holds copies of held-out episodes out too"
            at = episodes[copy]
            yield Fault(at.path, at.name, None, what, remedy, is_warning=True)
    if not len(training):
        what = "every episode is held out, so there is nothing to train on"
        yield Fault(place, None, None, what, "name some in mask/train, or record more")
    elif not any(episode.loss_weights.any() for episode in training):
        what = "no tick to train on has a weight above 0 in loss_weights"
        yield Fault(place, None, None, what, "give some a weight, or record more")
    if not episodes.spec.cameras and not episodes.spec.proprioception:
        what = "nothing in obs can be used, so a policy would see nothing"
        remedy = "see `ttm data show` for the reasons; --proprioception takes what is left out"
        yield Fault(place, None, None, what, remedy)
