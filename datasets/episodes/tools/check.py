"""`ttm data check`: looks through every file and every demo of a data set, and names their faults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise, starmap
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import numpy.typing as npt
import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes

from ttm.datasets.console import track
from ttm.datasets.dataset import (
    dataset_statistics,
    held_apart,
    open_dataset,
    require_motion,
    same_episodes,
    stored_embedding,
)
from ttm.datasets.description import (
    NOT_IN_ALL,
    Choices,
    Description,
    describe_bare,
    describe_stored,
)
from ttm.datasets.episode_file import (
    READ_ERRORS,
    decoded,
    demo_group,
    demo_names,
    instruction_of,
    mask_problems,
    read_masks,
)
from ttm.datasets.files import find_files
from ttm.datasets.frames import StoredCamera, is_encoded, read_frames
from ttm.datasets.hdf5 import find_member, is_written_in, one_line, read_rows
from ttm.datasets.opening import spec_of_file
from ttm.datasets.reader import whole_number
from ttm.datasets.spec_inference import (
    LEAVE_OUT,
    TAKE_OUT,
    Demo,
    Member,
    expected_shapes,
    member_lines,
    structure_problems,
    survey,
)
from ttm.datasets.writer import LARGEST, limits_text, outside_limits, usable_weights
from ttm.policy.errors import UserError, printable
from ttm.policy.files import PARTIAL_SUFFIX
from ttm.policy.spec import CameraSpec, PolicySpec


@dataclass(frozen=True)
class DataCheckCommand:
    """Check every episode of a data set, and name each fault with its file, demo, tick and remedy.

    Finds: files that cannot be read, missing datasets, lengths that differ, NaN, actions outside their
    limits, frames that repeat or do not decode, timestamps that run backwards, repeat or leave gaps, loss
    weights below 0, specs that differ between files, masks that name demos which are not there, episodes
    that occur twice, data that lie elsewhere. It fails whenever training would refuse the data.

    The exit code is 0 if there is no fault (warnings allowed), 1 if there are faults, and 2 if
    there is no data set, or a choice does not fit it.
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def run(self) -> int:
        """Check the data set and print the report; return the exit code."""
        report = check_dataset(self.path, self.choices)
        print_report(report, Console())
        return 1 if report.num_errors else 0


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where it is, what it is, and its remedy.

    `demo` is None for a fault of the whole file. `tick` is the first of the ticks concerned, or
    None. A warning is something to look at that may be right; it does not fail the check.
    """

    path: Path
    demo: str | None
    tick: int | None
    what: str
    remedy: str
    is_warning: bool = False

    @classmethod
    def of_error(cls, path: Path, demo: str | None, error: Exception) -> Fault:
        """Return the fault that an error tells, whose text is "PATH: what; remedy"."""
        text = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
        what, _, remedy = text.removeprefix(f"data/{demo}").lstrip("/ ").partition("; ")
        return cls(path, demo, None, what, remedy or TAKE_OUT)


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

    There is at least one fault if `open_dataset` with the same choices would refuse the data set. Raises
    `UserError` if there is no file, or if a choice does not fit the data.
    """
    return _Check(Path(path), choices or Choices()).report()


class _Check:
    """One check: what the files hold, found in a first pass, and then their faults."""

    def __init__(self, path: Path, choices: Choices) -> None:
        self._path, self._choices = path, choices
        self._files = find_files(path, allow_external=choices.allow_external)
        self._specs: dict[Path, PolicySpec] = {}
        self._demos: list[Demo] = []
        for each in self._files:
            with suppress(UserError), choices.open(each) as file:  # `_of_file` names the fault
                if (spec := spec_of_file(file, each)) is not None:
                    self._specs[each] = spec
                self._demos += [(each, name) for name in demo_names(file)]
        self._described = self._description()
        self._lengths: list[int] = []

    def report(self) -> CheckReport:
        """Look for faults, and return all of them."""
        faults = [fault for file in track(self._files, "checking") for fault in self._of_file(file)]
        faults += leftovers(self._files)
        members = self._described.members if self._described else ()
        for member in members:
            if member.reason == NOT_IN_ALL:
                what = f"obs/{member.name} is {NOT_IN_ALL}, and is not used"
                remedy = "write it in all demos if the policy is to see it"
                faults.append(Fault(self._path, None, None, what, remedy, is_warning=True))
        if all(fault.is_warning for fault in faults):
            faults += _opening_faults(self._path, self._choices)
        count, ticks = len(self._lengths), sum(self._lengths)
        return CheckReport(tuple(faults), len(self._files), count, ticks, members)

    def _description(self) -> Description | None:
        """Return the description of the demos that allow one; None if there are none.

        Raises `UserError` if it is a choice of the user that does not fit.
        """
        if self._specs:
            path, spec = next(iter(self._specs.items()))
            own = (demo for demo in self._demos if demo[0] == path)
            first = next((demo for demo in own if self._action_size(demo) is not None), None)
            return describe_stored(spec, first, self._choices)
        try:
            return describe_bare(self._demos, self._choices)
        except UserError:
            sizes = {demo: self._action_size(demo) for demo in self._demos}
            counts = Counter(size for size in sizes.values() if size is not None)
            usual = [size for size, _ in counts.most_common(1)]
            demos = [demo for demo, size in sizes.items() if size in usual]
            return describe_bare(demos, self._choices) if demos else None

    def _action_size(self, demo: Demo) -> int | None:
        """Return the number of action dimensions of a demo; None if it cannot be described by itself."""
        with suppress(UserError):
            found = survey([demo], allow_external=self._choices.allow_external)
            return int(found.actions[0].shape[1])
        return None

    def _of_file(self, path: Path) -> Iterator[Fault]:
        try:
            with self._choices.open(path) as file:
                spec_of_file(file, path)  # raises what is wrong with the file as a whole
                names = demo_names(file)
                yield from self._file_faults(file, path, names)
                for name in names:
                    yield from self._of_demo(file, path, name)
        except UserError as error:
            yield Fault.of_error(path, None, error)

    def _file_faults(self, file: Any, path: Path, names: Sequence[str]) -> Iterator[Fault]:
        """Find the faults of an open file with demos of these names, apart from those of the demos."""
        found: list[tuple[str, str]] = []
        carries = path in self._specs
        if not names:
            found.append(("it has no demo (data/demo_0, …)", "give a robomimic file"))
        if self._described is None:
            remedy = "repair the files named here, or give --spec"
            found.append(("no spec can be inferred from any file", remedy))
        elif carries:
            spec, own = self._described.spec, self._specs[path]
            try:
                spec.require_compatible(own, theirs="this one", ours="the first file")
            except UserError as error:
                found.append((f"another spec: {error}", "keep the two kinds in different folders"))
        if self._specs and not carries:
            found.append(("it carries no ttm_spec, others do", "keep it in another folder"))
        masks = read_masks(file)
        for what, remedy in (*found, *mask_problems(masks, names)):
            yield Fault(path, None, None, what, remedy)
        for key, members in masks.items():
            for name in sorted(set(members) - set(names)):
                what = f"mask/{key} names it, but it is not there"
                yield Fault(path, name, None, what, f"take it out of mask/{key}")
        for name in sorted(set(masks.get("train", [])) & set(masks.get("valid", []))):
            what, remedy = "it is in mask/train and in mask/valid", "take it out of one"
            yield Fault(path, name, None, what, remedy, is_warning=True)

    def _of_demo(self, file: Any, path: Path, name: str) -> list[Fault]:
        """Return the faults of a demo, and note its length.

        Its values are looked at only if its structure is right, so that one fault is named once.
        """
        length, faults = 0, []
        try:
            group = demo_group(file, name)
            if self._described is None:  # what is wrong with the demo is raised
                survey([(path, name)], allow_external=self._choices.allow_external)
            else:
                spec, is_inferred = self._described.spec, path not in self._specs
                if not is_inferred and not self._choices.changes_spec:
                    spec = self._specs[path]
                cameras = {key: each.of_file(file) for key, each in self._described.cameras.items()}
                demo = _DemoCheck(path, name, group, spec, is_inferred, cameras)
                faults = list(demo.structure_faults()) or demo.content_faults()
                length = (getattr(find_member(group, "actions"), "shape", None) or (0,))[0]
        except UserError as error:
            faults = [Fault.of_error(path, name, error)]
        except READ_ERRORS as error:
            what = f"its data cannot be read ({one_line(error)})"
            faults = [Fault(path, name, None, what, LEAVE_OUT)]
        self._lengths.append(length)
        return faults


def leftovers(files: Sequence[Path]) -> Iterator[Fault]:
    """Find recordings that were never finished, in the folders of the files."""
    for folder in sorted({file.parent for file in files}):
        partials = sorted(folder.glob(f".*{PARTIAL_SUFFIX}"))
        what = "it was never finished: the program that wrote it was killed"
        remedy = "delete it, or start a recorder, which deletes its own"
        if partials and is_written_in(folder):
            what = "it is being written, or was left by a program that was killed"
            remedy = "check again when nobody writes here; on a drive without locks, delete it then"
        for partial in partials:
            yield Fault(partial, None, None, what, remedy, is_warning=True)


def _opening_faults(path: Path, choices: Choices) -> Iterator[Fault]:
    """Find what training would refuse although no file by itself is at fault."""
    try:
        episodes = open_dataset(path, choices=choices)
        copies = same_episodes(episodes)
        for episode in episodes:
            stored_embedding(episode)
        training = held_apart(episodes.filter("train"), episodes.filter("valid"))
        if len(training):
            require_motion(dataset_statistics(training).actions, training.source)
    except UserError as error:
        yield Fault.of_error(path, None, error)
        return
    for first, *others in copies:
        what = f"it is a copy of {episodes[first].path} {episodes[first].name}"
        remedy = "keep one of them; training holds copies of held-out episodes out too"
        for copy in (episodes[index] for index in others):
            yield Fault(copy.path, copy.name, None, what, remedy, is_warning=True)
    if not len(training):
        what = "every episode is held out, so there is nothing to train on"
        yield Fault(path, None, None, what, "name some in mask/train, or record more")
    elif not any(episode.loss_weights.any() for episode in training):
        what = "no tick to train on has a weight above 0 in loss_weights"
        yield Fault(path, None, None, what, "give some a weight, or record more")
    if not episodes.spec.cameras and not episodes.spec.proprioception:
        what = "nothing in obs can be used, so a policy would see nothing"
        remedy = "see `ttm data show` for the reasons; --proprioception takes what is left out"
        yield Fault(path, None, None, what, remedy)


MAX_GAP_PERIODS = 2.5
"""Longer gaps between ticks, in control periods, are faults: two ticks or more were lost in them."""

RATE_TOLERANCE = 0.25
"""The largest relative deviation of the measured rate from the spec's that passes."""

OPTIONAL = ("executed_actions", "interventions", "loss_weights", "timestamps", "rewards", "dones")
"""Datasets of one row for each tick that a demo may lack."""

STUCK_REPEATS = 3
"""This many repeats of a frame in a row, while the robot moves, mean that the camera is stuck."""
STILL_RANGE = 0.01
"""The robot stands still while its proprioception varies by at most this (10 mm, 0.6 degrees)."""
BLOCK_TICKS = 64  # the number of frames that are read at once, which bounds the memory needed


def runs(flags: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return (first, last) of every run of True in `flags`, (T,) bool."""
    padded = np.concatenate([[False], np.asarray(flags), [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(padded)).tolist()
    return [(first, stop - 1) for first, stop in zip(edges[::2], edges[1::2], strict=True)]


def ticks_text(first: int, last: int) -> str:
    """Return a run of ticks in words."""
    return f"at tick {first}" if first == last else f"at ticks {first} to {last}"


@dataclass(frozen=True)
class _DemoCheck:
    """An open demo with the spec that it should have."""

    path: Path
    name: str
    group: Any
    spec: PolicySpec
    inferred: bool
    """Whether the spec was inferred from the data."""
    cameras: Mapping[str, StoredCamera]
    """How the frames of each camera are stored."""

    def fault(
        self, what: str, remedy: str, tick: int | None = None, *, is_warning: bool = False
    ) -> Fault:
        """Return a fault of this demo."""
        return Fault(self.path, self.name, tick, what, remedy, is_warning)

    def run_faults(
        self, bad: npt.ArrayLike, what: str, remedy: str, offset: int = 0
    ) -> Iterator[Fault]:
        """Yield a fault for each run of bad ticks (T,), the first of which is tick `offset`."""
        for first, last in runs(bad):
            ticks = ticks_text(first + offset, last + offset)
            yield self.fault(f"{what} {ticks}", remedy, first + offset)

    def structure_faults(self) -> Iterator[Fault]:
        """Find what is missing, no dataset of ticks, or of another type or shape."""
        for what, remedy in structure_problems(self.group, self.spec):
            yield self.fault(what, remedy)
        for key in ("rewards", "dones", "loss_weights"):
            if key in self.group and not getattr(self.group[key], "shape", None):
                what = f"{key} is not a dataset of one row for each tick"
                yield self.fault(what, f"take {key} out of the file; training can do without")

    def content_faults(self) -> list[Fault]:
        """Return the faults of the values; what cannot be read is one of them."""
        checks = [self._length_faults(), self._value_faults(), self._weight_faults()]
        checks += [self._clock_faults(), self._fact_faults()]
        checks += map(self._frame_faults, self.spec.cameras)
        faults: list[Fault] = []
        for check in checks:
            try:
                faults += check
            except READ_ERRORS as error:
                faults.append(self.fault(f"its data cannot be read ({one_line(error)})", LEAVE_OUT))
        return faults

    def _length_faults(self) -> Iterator[Fault]:
        """Find datasets (and num_samples) of another length than the actions."""
        length = len(self.group["actions"])
        if length == 0:
            yield self.fault("it has no tick", TAKE_OUT)
        for key in (*expected_shapes(self.spec), *OPTIONAL):
            stored = self.group.get(key)
            if isinstance(stored, h5py.Dataset) and len(stored) != length:
                remedy = f"take {key} out of the file" if key in OPTIONAL else TAKE_OUT
                what = f"{key} has {len(stored)} ticks, actions {length}"
                yield self.fault(what, remedy, min(len(stored), length))
        declared = self.group.attrs.get("num_samples")
        if whole_number(declared, int) != length:
            said = "is missing" if declared is None else f"says {declared}"
            what = f"attribute num_samples {said}, there are {length} actions"
            yield self.fault(what, f"set it to {length}", is_warning=declared is None)

    def _fact_faults(self) -> Iterator[Fault]:
        """Find attributes that are not what their names say; readers take them for missing."""
        for key, kind in (("success", bool), ("seed", int)):
            value = self.group.attrs.get(key)
            if value is not None and whole_number(value, kind) is None:
                what = f"attribute {key} is {one_line(decoded(value))}, and no single number"
                yield self.fault(what, f"set it to a number, or remove {key}", is_warning=True)
        try:
            instruction = instruction_of(self.group)
        except UserError as error:
            yield Fault.of_error(self.path, self.name, error)
            return
        if "\ufffd" in instruction:
            what = "its instruction is not UTF-8 text, and some characters are replaced"
            yield self.fault(what, "set the attribute language_instruction again", is_warning=True)
        if not instruction and not self.inferred:
            what, remedy = "it has no instruction", "set the attribute language_instruction"
            yield self.fault(what, remedy, is_warning=True)

    def _value_faults(self) -> Iterator[Fault]:
        """Find values that are not finite, and actions that the spec does not allow."""
        vectors = (f"obs/{vector.name}" for vector in self.spec.proprioception)
        keys = ("actions", "executed_actions", *vectors)
        for key in (key for key in keys if key in self.group):
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
                values = np.atleast_2d(self.group[key][()].T).T.astype(np.float32)  # (T, K)
            finite = np.isfinite(values)
            found = {"NaN or infinite": ~finite}
            if not key.startswith("obs/"):
                found[f"beyond {LARGEST:g}"] = finite & (np.abs(values) > LARGEST)
            for words, bad in found.items():
                for first, last in runs(bad.any(axis=1)):
                    where = np.flatnonzero(bad[first : last + 1].any(axis=0)).tolist()
                    what = f"{key}{where} is {words} {ticks_text(first, last)}"
                    yield self.fault(what, LEAVE_OUT, first)
        actions = np.asarray(self.group["actions"], dtype=np.float32)
        for part in self.spec.actions:
            values = actions[:, self.spec.action_slices[part.name]]
            bad = outside_limits(part, values) & np.isfinite(values)  # (T, size)
            if self.inferred and part.kind == "binary":
                # Inference allows some values on their way between the two commands.
                bad &= (values < part.limits[0]) | (values > part.limits[1])
            remedy = f"clip it when recording, give other limits in a --spec file, or {LEAVE_OUT}"
            for first, last in runs(bad.any(axis=1)):
                worst = values[first : last + 1][bad[first : last + 1]]
                extreme = float(worst[np.abs(worst).argmax()])
                what = f"action '{part.name}' reaches {extreme:g} {ticks_text(first, last)}"
                yield self.fault(f"{what}, outside {limits_text(part)}", remedy, first)

    def _weight_faults(self) -> Iterator[Fault]:
        """Find loss weights that are not one number from 0 to `LARGEST` for each tick."""
        remedy = "write one weight of 0 or more for each tick, or take loss_weights out of the file"
        if "loss_weights" not in self.group:
            return
        stored = self.group["loss_weights"]
        if stored.ndim != 1 or stored.dtype.kind not in "fiub":
            kind = f"shape {stored.shape} and {stored.dtype} values"
            yield self.fault(f"loss_weights has {kind}, not numbers (T,)", remedy)
            return
        with np.errstate(over="ignore"):
            weights = np.asarray(stored, dtype=np.float32)
        large = np.isfinite(weights) & (weights > LARGEST)
        wrong = ~usable_weights(weights) & ~large
        yield from self.run_faults(wrong, "loss_weights is NaN, infinite or below 0", remedy)
        yield from self.run_faults(large, f"loss_weights is beyond {LARGEST:g}", remedy)

    def _clock_faults(self) -> Iterator[Fault]:
        """Find timestamps that run backwards, repeat, leave gaps, or contradict the spec's rate."""
        if "timestamps" not in self.group:
            return
        times = np.asarray(self.group["timestamps"], dtype=np.float64)
        infinite = ~np.isfinite(times)
        yield from self.run_faults(infinite, "timestamps are NaN or infinite", LEAVE_OUT)
        if len(times) < 2 or infinite.any():
            return
        steps, period = np.diff(times), self.spec.control_dt_s
        for first, last in runs(steps < 0):
            ticks = ticks_text(first + 1, last + 1)
            what = f"timestamps run backwards by {-steps[first]:.3f} s {ticks}"
            yield self.fault(what, LEAVE_OUT, first + 1)
        yield from self.run_faults(steps == 0, "timestamps repeat", LEAVE_OUT, offset=1)
        for tick in np.flatnonzero(steps > MAX_GAP_PERIODS * period).tolist():
            what = f"gap of {steps[tick]:.3f} s before tick {tick + 1}; the control period is {period:.3f} s"
            remedy = f"{LEAVE_OUT}, or split it there"
            yield self.fault(what, remedy, tick + 1)
        median_s, rate_hz = float(np.median(steps)), self.spec.rate_hz
        if median_s > 0 and abs(1 / median_s - rate_hz) > RATE_TOLERANCE * rate_hz:
            what = f"recorded at {1 / median_s:.2f} Hz, the spec says {rate_hz:g} Hz"
            remedy = "give the rate at which the policy will run in a --spec file"
            yield self.fault(what, remedy, is_warning=True)

    def _frame_faults(self, camera: CameraSpec) -> Iterator[Fault]:
        """Find faults of the frames of one camera.

        `STUCK_REPEATS` frames in a row that equal the one before to the byte are a fault if the robot moved
        meanwhile, or if no proprioception would show it. Other repeats are one warning, because simulated
        cameras have no noise. A simulation that repeats frames as a variation means to.
        """
        key = f"obs/{camera.name}"
        stored = self.group[key]
        starts = range(0, len(stored), BLOCK_TICKS)
        blocks = (read_rows(stored, start, start + BLOCK_TICKS) for start in starts)
        repeats = [False, *starmap(np.array_equal, pairwise(chain.from_iterable(blocks)))]
        if stored.dtype != np.uint8 or is_encoded(stored):  # others have the shape of the dataset
            yield from self._conversion_faults(camera, stored)
        if re.search(r"\b(frames|latency)=", decoded(self.group.attrs.get("variation"))):
            return
        what, single = f"{key} repeats the frame before it", list[int]()
        for first, last in runs(repeats):
            if last - first + 1 >= STUCK_REPEATS and not self._stands_still(first - 1, last):
                moving = f"{what} {ticks_text(first, last)} while the robot moves"
                yield self.fault(moving, LEAVE_OUT, first)
            else:
                single += range(first, last + 1)
        if single:
            remedy = "nothing to do if the scene stood still; otherwise the camera is slow"
            what = f"{what} at {len(single)} of {len(stored)} ticks"
            yield self.fault(what, remedy, single[0], is_warning=True)

    def _conversion_faults(self, camera: CameraSpec, stored: Any) -> Iterator[Fault]:
        """Find frames that do not decode, have another size, or values out of their range."""
        how = self.cameras.get(camera.name, StoredCamera())
        shape = (camera.height, camera.width, 3)
        for tick in range(len(stored)):
            where = f"obs/{camera.name} at tick {tick}"
            try:
                found = read_frames(stored, tick, tick + 1, how)[0].shape
            except (OSError, ValueError) as error:
                yield self.fault(f"{where}: {one_line(error)}", LEAVE_OUT, tick)
                continue
            if found != shape:
                yield self.fault(f"{where} has shape {found}, others {shape}", LEAVE_OUT, tick)

    def _stands_still(self, first: int, last: int) -> bool:
        keys = (f"obs/{vector.name}" for vector in self.spec.proprioception)
        vectors = [np.asarray(self.group[key][first : last + 1], np.float64) for key in keys]
        # A vector that is shorter than the frames has no values here.
        spans = [np.ptp(values, axis=0).max(initial=0.0) for values in vectors if len(values)]
        return bool(spans) and all(span <= STILL_RANGE for span in spans)


def print_report(report: CheckReport, console: Console) -> None:
    """Print what is used of `obs`, the faults by file, and then a line that sums up."""
    plain: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}
    for line in member_lines(report.members):
        console.print(line, **plain)
    for path, faults in groupby(report.faults, key=lambda fault: fault.path):
        console.print(str(path), style="bold", **plain)
        for fault in faults:
            label = "[yellow]warning[/yellow]" if fault.is_warning else "[red]fault[/red]  "
            tick = "" if fault.tick is None else f" tick {fault.tick}"
            console.print(f"  {label} {fault.demo or 'file'}{tick}: ", end="", highlight=False)
            console.print(printable(f"{fault.what} -> {fault.remedy}"), **plain)
    colour = "red" if report.num_errors else "green"
    scope = f"{report.num_episodes} episodes ({report.num_ticks} ticks) of {report.num_files} files"
    verdict = f"[{colour}]{report.num_errors} faults[/{colour}], {report.num_warnings} warnings"
    console.print(f"{verdict} in {scope}", highlight=False)
