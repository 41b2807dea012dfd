"""Checking of data sets: looks through every file and every demo, and collects their faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    spec_difference,
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
    open_file,
    read_masks,
)
from ttm.datasets.files import find_files
from ttm.datasets.frames import Frames, StoredCamera, is_encoded, read_frames
from ttm.datasets.hdf5 import find_member, is_written_in, one_line, read_rows
from ttm.datasets.index import stored_spec
from ttm.datasets.reader import whole_number
from ttm.datasets.spec_inference import (
    LEAVE_OUT,
    TAKE_OUT,
    Member,
    expected_shapes,
    member_lines,
    structure_problems,
    survey,
)
from ttm.datasets.writer import LARGEST, limits_text, outside_limits, usable_weights
from ttm.policy.errors import UserError, printable
from ttm.policy.files import PARTIAL_SUFFIX
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec

# The options of `ttm data check`.


@dataclass(frozen=True)
class DataCheckCommand:
    """Check every episode of a data set, and name each fault with its file, demo, tick and remedy.

    Finds: files that are truncated or cannot be read, missing datasets, lengths that differ, NaN,
    actions outside their limits, frames that repeat or do not decode, timestamps that run
    backwards, repeat or leave gaps, loss weights below 0, specs that differ between files, masks
    that name demos which are not there, episodes that occur twice, data that lie elsewhere. With the
    same choices, it fails whenever training would refuse the data.

    The exit code is 0 if there is no fault (warnings allowed), 1 if there are faults, and 2 if
    there is no data set, or a choice does not fit it.
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def run(self) -> int:
        """Check the data set and print the report; return the exit code."""

        return check_and_report(self.path, self.choices)


# What a check finds: faults, and the demos that they are found in.


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
class Demo:
    """An open demo with the spec that it should have.

    `group` is its open HDF5 group. `inferred` is True if the spec was inferred from the data.
    `cameras` says how the frames of each camera are stored.
    """

    path: Path
    name: str
    group: Any
    spec: PolicySpec
    inferred: bool
    cameras: Mapping[str, StoredCamera] = field(default_factory=dict)

    def fault(
        self, what: str, remedy: str, tick: int | None = None, *, is_warning: bool = False
    ) -> Fault:
        """Return a fault of this demo."""
        return Fault(self.path, self.name, tick, what, remedy, is_warning)


def runs(flags: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return (first, last) of every run of True in `flags`, (T,) bool."""
    edges = np.flatnonzero(
        np.diff(np.concatenate([[False], np.asarray(flags), [False]]).astype(np.int8))
    )
    return [
        (int(first), int(stop) - 1) for first, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def ticks_text(first: int, last: int) -> str:
    """Return a run of ticks in words."""
    return f"at tick {first}" if first == last else f"at ticks {first} to {last}"


# Faults of one demo apart from its camera frames: structure, values, limits, timestamps.

MAX_GAP_PERIODS = 2.5
"""Gaps between ticks that are longer than this many control periods are faults.

Two ticks or more were lost in them."""

RATE_TOLERANCE = 0.25
"""The largest relative deviation of the measured rate from the spec's that passes."""

OPTIONAL = ("executed_actions", "interventions", "loss_weights", "timestamps", "rewards", "dones")
"""Datasets of one row for each tick that a demo may lack."""


def structure_faults(demo: Demo, *, allow_external: bool = False) -> Iterator[Fault]:
    """Find what is missing, no dataset of ticks, or of another type or shape."""
    for what, remedy in structure_problems(demo.group, demo.spec, allow_external=allow_external):
        yield demo.fault(what, remedy)
    for key in ("rewards", "dones", "loss_weights"):
        if key in demo.group and not getattr(demo.group[key], "shape", None):
            what = f"{key} is not a dataset of one row for each tick"
            yield demo.fault(what, f"take {key} out of the file; training can do without")


def length_faults(demo: Demo) -> Iterator[Fault]:
    """Find datasets (and num_samples) of another length than the actions."""
    length = len(demo.group["actions"])
    if length == 0:
        yield demo.fault("it has no tick", TAKE_OUT)
    for key in (*expected_shapes(demo.spec), *OPTIONAL):
        stored = demo.group.get(key)
        if isinstance(stored, h5py.Dataset) and len(stored) != length:
            remedy = f"take {key} out of the file" if key in OPTIONAL else TAKE_OUT
            what = f"{key} has {len(stored)} ticks, actions {length}"
            yield demo.fault(what, remedy, min(len(stored), length))
    declared = demo.group.attrs.get("num_samples")
    if whole_number(declared, int) != length:
        said = "is missing" if declared is None else f"says {declared}"
        yield demo.fault(
            f"attribute num_samples {said}, there are {length} actions",
            f"set it to {length}",
            is_warning=declared is None,
        )


def fact_faults(demo: Demo) -> Iterator[Fault]:
    """Find attributes that are not what their names say; readers take them for missing."""
    for key, kind in (("success", bool), ("seed", int)):
        value = demo.group.attrs.get(key)
        if value is not None and whole_number(value, kind) is None:
            what = f"attribute {key} is {one_line(decoded(value))}, and no single number"
            yield demo.fault(what, f"set it to a number, or remove {key}", is_warning=True)
    try:
        instruction = instruction_of(demo.group)
    except UserError as error:
        yield Fault.of_error(demo.path, demo.name, error)
        return
    if "\ufffd" in instruction:
        what = "its instruction is not UTF-8 text, and some characters are replaced"
        yield demo.fault(what, "set the attribute language_instruction again", is_warning=True)
    if not instruction and not demo.inferred:
        what, remedy = "it has no instruction", "set the attribute language_instruction"
        yield demo.fault(what, remedy, is_warning=True)


def value_faults(demo: Demo) -> Iterator[Fault]:
    """Find values that are not finite, and actions that the spec does not allow."""
    vectors = (f"obs/{vector.name}" for vector in demo.spec.proprioception)
    for key in ("actions", "executed_actions", *vectors):
        if key not in demo.group:
            continue
        with np.errstate(
            over="ignore"
        ):  # what float32 cannot hold becomes infinite, as in a training
            values = np.atleast_2d(demo.group[key][()].T).T.astype(np.float32)  # (T, K)
        found = {"NaN or infinite": ~np.isfinite(values)}
        if not key.startswith("obs/"):
            found[f"beyond {LARGEST:g}"] = np.isfinite(values) & (np.abs(values) > LARGEST)
        for words, bad in found.items():
            for first, last in runs(bad.any(axis=1)):
                where = np.flatnonzero(bad[first : last + 1].any(axis=0)).tolist()
                what = f"{key}{where} is {words} {ticks_text(first, last)}"
                yield demo.fault(what, LEAVE_OUT, first)
    actions = np.asarray(demo.group["actions"], dtype=np.float32)
    for part in demo.spec.actions:
        yield from _limit_faults(demo, part, actions[:, demo.spec.action_slices[part.name]])


def weight_faults(demo: Demo) -> Iterator[Fault]:
    """Find loss weights that are not one number from 0 to `LARGEST` for each tick."""
    remedy = "write one weight of 0 or more for each tick, or take loss_weights out of the file"
    if "loss_weights" not in demo.group:
        return
    stored = demo.group["loss_weights"]
    if stored.ndim != 1:
        yield demo.fault(f"loss_weights has shape {stored.shape}, not (T,)", remedy)
        return
    if stored.dtype.kind not in "fiub":
        yield demo.fault(f"loss_weights holds {stored.dtype}, not numbers", remedy)
        return
    with np.errstate(over="ignore"):
        weights = np.asarray(stored, dtype=np.float32)
    large = np.isfinite(weights) & (weights > LARGEST)
    found = {
        "NaN, infinite or below 0": ~usable_weights(weights) & ~large,
        f"beyond {LARGEST:g}": large,
    }
    for words, bad in found.items():
        for first, last in runs(bad):
            what = f"loss_weights is {words} {ticks_text(first, last)}"
            yield demo.fault(what, remedy, first)


def clock_faults(demo: Demo) -> Iterator[Fault]:
    """Find timestamps that run backwards, repeat, leave gaps, or contradict the spec's rate."""
    if "timestamps" not in demo.group:
        return
    times = np.asarray(demo.group["timestamps"], dtype=np.float64)
    for first, last in runs(~np.isfinite(times)):
        yield demo.fault(
            f"timestamps are NaN or infinite {ticks_text(first, last)}", LEAVE_OUT, first
        )
    if len(times) < 2 or not np.isfinite(times).all():
        return
    steps, period = np.diff(times), demo.spec.control_dt_s
    for first, last in runs(steps < 0):
        what = (
            f"timestamps run backwards by {-steps[first]:.3f} s {ticks_text(first + 1, last + 1)}"
        )
        yield demo.fault(
            what, f"{LEAVE_OUT}; was the clock set, or another sensor's stamp taken?", first + 1
        )
    for first, last in runs(steps == 0):
        what = f"timestamps repeat {ticks_text(first + 1, last + 1)}"
        yield demo.fault(
            what, f"{LEAVE_OUT}; the recorder read the sensors faster than they answered", first + 1
        )
    for tick in np.flatnonzero(steps > MAX_GAP_PERIODS * period).tolist():
        what = (
            f"gap of {steps[tick]:.3f} s before tick {tick + 1}; "
            f"the control period is {period:.3f} s"
        )
        yield demo.fault(
            what,
            f"{LEAVE_OUT}, or split it there; was the recorder's machine overloaded?",
            tick + 1,
        )
    yield from _rate_faults(demo, float(np.median(steps)))


def _rate_faults(demo: Demo, median_s: float) -> Iterator[Fault]:
    if median_s > 0 and abs(1 / median_s - demo.spec.rate_hz) > RATE_TOLERANCE * demo.spec.rate_hz:
        what = f"recorded at {1 / median_s:.2f} Hz, the spec says {demo.spec.rate_hz:g} Hz"
        yield demo.fault(
            what, "give the rate at which the policy will run in a --spec file", is_warning=True
        )


def _limit_faults(demo: Demo, part: ActionPart, values: npt.NDArray[np.float32]) -> Iterator[Fault]:
    bad = outside_limits(part, values) & np.isfinite(values)  # (T, size)
    if demo.inferred and part.kind == "binary":
        # Inference allows some values on their way between the two commands.
        bad &= (values < part.limits[0]) | (values > part.limits[1])
    for first, last in runs(bad.any(axis=1)):
        worst = values[first : last + 1][bad[first : last + 1]]
        extreme = float(worst[np.abs(worst).argmax()])
        what = (
            f"action '{part.name}' reaches {extreme:g} {ticks_text(first, last)}, "
            f"outside {limits_text(part)}"
        )
        yield demo.fault(
            what,
            f"clip it when recording, give other limits in a --spec file, or {LEAVE_OUT}",
            first,
        )


# Faults of a file of episodes as a whole: no demos, another spec, masks, unfinished recordings.


def file_faults(
    file: Any,
    path: Path,
    names: Sequence[str],
    spec: PolicySpec | None,
    specs: dict[Path, PolicySpec],
    *,
    allow_external: bool = False,
) -> Iterator[Fault]:
    """Find the faults of an open file, apart from those of its demos.

    names: those of its demos.
    spec: the data set's, or None if there is none.
    specs: those that files of the data set carry.
    """
    if not names:
        what = "it has no demo (data/demo_0, …)"
        yield Fault(path, None, None, what, "move it elsewhere, or give a robomimic file")
    if spec is None:
        what = "no spec can be inferred from any file"
        yield Fault(path, None, None, what, "repair the files named here, or give --spec")
    yield from _spec_faults(file, path, spec, specs)
    masks = read_masks(file, allow_external=allow_external)
    for what, remedy in mask_problems(masks, names):
        yield Fault(path, None, None, what, remedy)
    for key, members in masks.items():
        for name in sorted(set(members) - set(names)):
            what = f"mask/{key} names it, but it is not there"
            yield Fault(path, name, None, what, f"take it out of mask/{key}")
    for name in sorted(set(masks.get("train", [])) & set(masks.get("valid", []))):
        what = "it is in mask/train and in mask/valid"
        remedy = "take it out of one: the validation error would be too low"
        yield Fault(path, name, None, what, remedy, is_warning=True)


def leftovers(files: Sequence[Path]) -> Iterator[Fault]:
    """Find recordings that were never finished, in the folders of the files."""
    for folder in sorted({file.parent for file in files}):
        partials = sorted(folder.glob(f".*{PARTIAL_SUFFIX}"))
        if not partials:
            continue
        if is_written_in(folder):
            what = "it is being written, or was left by a program that was killed"
            remedy = "check again when nobody writes in this folder; on a drive without locks, delete it then"
        else:
            what = "it was never finished: the program that wrote it was killed"
            remedy = "delete it, or start a recorder, which deletes its own"
        for partial in partials:
            yield Fault(partial, None, None, what, remedy, is_warning=True)


def _spec_faults(
    file: Any, path: Path, spec: PolicySpec | None, specs: dict[Path, PolicySpec]
) -> Iterator[Fault]:
    if path in specs and spec is not None:
        difference = spec_difference(spec, specs[path])
        if difference:
            what = f"another spec: {difference}"
            yield Fault(path, None, None, what, "keep the two kinds in different folders")
    elif specs:
        what = "it carries no ttm_spec, others do"
        yield Fault(
            path, None, None, what, "keep it in another folder, or write the others' into it"
        )


# Faults of the camera frames of a demo: JPEGs that do not decode, frames that repeat.

STUCK_REPEATS = 3
"""This many repeats of a frame in a row, while the robot moves, mean that the camera is stuck."""

STILL_RANGE = 0.01
"""The robot stands still while its proprioception varies by at most this (10 mm, 0.6 degrees)."""

BLOCK_TICKS = 64
"""The number of frames that are read at once, which bounds the memory needed."""


def frame_faults(demo: Demo, camera: CameraSpec) -> Iterator[Fault]:
    """Find faults of the frames of one camera.

    A frame that is byte-identical to the one before was not renewed by the camera. `STUCK_REPEATS`
    of them in a row are a fault if the robot moved meanwhile, or if there is no proprioception that
    would show it. Fewer repeats, or repeats while the robot stands still, are a warning, because
    simulated cameras have no noise.
    """
    stored = demo.group[f"obs/{camera.name}"]
    repeats = np.zeros(len(stored), dtype=np.bool_)
    previous: Frames | None = None
    for tick, frame in enumerate(_ticks(stored)):
        repeats[tick] = previous is not None and np.array_equal(frame, previous)
        previous = frame
    yield from _conversion_faults(demo, camera, stored)
    yield from _repeat_faults(demo, camera, repeats)


def _ticks(stored: Any) -> Iterator[Frames]:
    for start in range(0, len(stored), BLOCK_TICKS):
        yield from read_rows(stored, start, start + BLOCK_TICKS)


def _conversion_faults(demo: Demo, camera: CameraSpec, stored: Any) -> Iterator[Fault]:
    """Find frames that do not decode, have another size, or values out of their range."""
    if stored.dtype == np.uint8 and not is_encoded(stored):
        return  # such frames are taken as they are, and their shape is that of the dataset
    how = demo.cameras.get(camera.name, StoredCamera())
    shape = (camera.height, camera.width, 3)
    for tick in range(len(stored)):
        try:
            found = read_frames(stored, tick, tick + 1, how)[0].shape
        except (OSError, ValueError) as error:
            what = f"obs/{camera.name} at tick {tick}: {one_line(error)}"
            yield demo.fault(what, LEAVE_OUT, tick)
            continue
        if found != shape:
            what = f"obs/{camera.name} at tick {tick} has shape {found}, others {shape}"
            yield demo.fault(what, LEAVE_OUT, tick)


def _repeat_faults(
    demo: Demo, camera: CameraSpec, repeats: npt.NDArray[np.bool_]
) -> Iterator[Fault]:
    for first, last in runs(repeats):
        stuck = last - first + 1 >= STUCK_REPEATS and not _stands_still(demo, first - 1, last)
        what = f"obs/{camera.name} repeats the frame before it {ticks_text(first, last)}"
        if stuck:
            yield demo.fault(
                f"{what} while the robot moves",
                f"{LEAVE_OUT}; did the camera's driver stall?",
                first,
            )
        else:
            remedy = (
                "nothing to do if the scene stood still; "
                "otherwise the camera is slower than the control rate"
            )
            yield demo.fault(what, remedy, first, is_warning=True)


def _stands_still(demo: Demo, first: int, last: int) -> bool:
    vectors = [
        np.asarray(demo.group[f"obs/{vector.name}"][first : last + 1], np.float64)
        for vector in demo.spec.proprioception
    ]
    # A vector that is shorter than the frames has no values here.
    recorded = [values for values in vectors if len(values)]
    return bool(recorded) and all(
        np.ptp(values, axis=0).max(initial=0.0) <= STILL_RANGE for values in recorded
    )


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


# What `ttm data check` prints.


def check_and_report(path: str, choices: Choices | None = None) -> int:
    """Check the data set `path` and print the report; return 1 if it has faults, 0 otherwise."""
    report = check_dataset(path, choices)
    print_report(report, Console())
    return 1 if report.num_errors else 0


def print_report(report: CheckReport, console: Console) -> None:
    """Print what is used of `obs`, the faults by file, and then a line that sums up."""
    for line in member_lines(report.members):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    current: Path | None = None
    for fault in report.faults:
        if fault.path != current:
            current = fault.path
            console.print(str(current), style="bold", soft_wrap=True, markup=False, highlight=False)
        label = "[yellow]warning[/yellow]" if fault.is_warning else "[red]fault[/red]  "
        place = " ".join(
            [fault.demo or "file", *([] if fault.tick is None else [f"tick {fault.tick}"])]
        )
        console.print(f"  {label} {place}: ", end="", highlight=False)
        console.print(
            printable(f"{fault.what} -> {fault.remedy}"),
            markup=False,
            soft_wrap=True,
            highlight=False,
        )
    colour = "red" if report.num_errors else "green"
    scope = f"{report.num_episodes} episodes ({report.num_ticks} ticks) of {report.num_files} files"
    verdict = f"[{colour}]{report.num_errors} faults[/{colour}], {report.num_warnings} warnings"
    console.print(f"{verdict} in {scope}", highlight=False)
