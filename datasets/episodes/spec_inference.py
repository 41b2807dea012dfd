"""The `PolicySpec` of files that carry none, such as those of robomimic, robosuite and LIBERO."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_file import (
    damaged,
    data_group,
    decoded,
    demo_group,
    open_file,
    require_printable,
)
from ttm.datasets.frames import (
    DEFAULT_RANGE,
    RANGE_SLACK,
    Shape,
    begins_an_image,
    decode_image,
    frame_shape,
    is_encoded,
)
from ttm.datasets.hdf5 import find_member, one_line, outside_fault, storage_fault
from ttm.datasets.layout import JPEG
from ttm.policy.errors import UserError
from ttm.policy.spec import RATES_HZ, ActionPart, PolicySpec

LEAVE_OUT = "leave this episode out by a mask, or record it again"
"""The remedy where nothing can mend an episode that can be opened."""

TAKE_OUT = "take this episode out of the data set (no mask helps), or record it again"
"""The remedy for one that cannot: a file is opened with all its episodes, whatever the masks say."""

ANY_SHAPE = ("loss_weights", "language_embedding", "rewards", "dones")
"""Optional datasets of a demo that keep it from being read only if they lie in another file."""

Problem = tuple[str, str]  # what is wrong, and its remedy

Numbers = tuple[str, str, str]
"""The kinds of NumPy types that a dataset may have, in words, and one of these types."""
REAL: Numbers = ("fiub", "real numbers", "float32")
WHOLE: Numbers = ("iub", "whole numbers", "uint8")


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the datasets that a demo of `spec` must have, with the shape of one tick of each."""
    shapes: dict[str, tuple[int, ...]] = {"actions": (spec.action_size,)}
    shapes |= {f"obs/{camera.name}": (camera.height, camera.width, 3) for camera in spec.cameras}
    return shapes | {f"obs/{vector.name}": (vector.size,) for vector in spec.proprioception}


def structure_problems(demo: Any, spec: PolicySpec) -> Iterator[Problem]:
    """Find what keeps an open demo from being read as one of `spec`, apart from lengths."""
    arrays = [(key, shape, REAL) for key, shape in expected_shapes(spec).items()]
    optional = (
        ("executed_actions", (spec.action_size,), REAL),
        ("interventions", (), WHOLE),
        ("timestamps", (), REAL),
    )
    for key, shape, numbers in (*arrays, *(each for each in optional if each[0] in demo)):
        if problem := _array_problem(demo, key, shape, numbers):
            yield problem
    for key in ANY_SHAPE:
        stored = find_member(demo, key)
        if isinstance(stored, h5py.Dataset) and (fault := outside_fault(stored)):
            yield f"{key}: {fault[0]}", fault[1]


def _array_problem(demo: Any, key: str, shape: tuple[int, ...], numbers: Numbers) -> Problem | None:
    """Return what keeps one dataset of a demo from being read, or None.

    shape: that of one tick. Of frames, (H, W, 3), those that can be converted to it pass.
    """
    stored = find_member(demo, key)
    if stored is None:
        remedy = f"{TAKE_OUT}, or keep it apart from those that have it"
        choose = ", or name what all have with --cameras and --proprioception"
        return f"{key} is missing", remedy + (choose if key.startswith("obs/") else "")
    if not isinstance(stored, h5py.Dataset) or not stored.shape:
        remedy = TAKE_OUT if key.startswith(("actions", "obs/")) else f"take {key} out of the file"
        return f"{key} is not a dataset of one row for each tick", remedy
    if fault := storage_fault(stored, whole=len(shape) < 3):
        return f"{key}: {fault[0]}", fault[1]
    if len(shape) == 3:
        encoding = stored.attrs.get("encoding")
        if encoding is not None and not (encoding == JPEG and is_encoded(stored)):
            return f"{key} has encoding {encoding!r} and {stored.dtype} values", (
                "write uint8 frames, or JPEGs with the attribute encoding='jpeg'"
            )
        found = frame_shape(stored)
        if stored.ndim == 4 and found is None:
            return f"{key} holds {stored.dtype} frames of shape {stored.shape[1:]}", (
                "write them as uint8 RGB, (T, H, W, 3)"
            )
        fits = (is_encoded(stored) and stored.ndim in (1, 2)) or found == shape[:2]
    else:
        kinds, words, example = numbers
        if stored.dtype.kind not in kinds:
            return f"{key} holds {stored.dtype}, not {words}", f"write it as {example}"
        fits = stored.shape[1:] == shape or (stored.ndim == 1 and shape == (1,))
    rest = "".join(f", {size}" for size in shape) or ","
    remedy = "keep episodes of different robots in different folders"
    return None if fits else (f"{key} has shape {stored.shape}, not (T{rest})", remedy)


ROBOSUITE_ROBOT = re.compile(r"robot\d+_")
"""How robosuite names what its robots measure; all its other vectors are of objects and the task."""
OBJECTS = re.compile(r"(^|_)(object|obj|cube[A-Z]?)s?(_|-|$)")
"""Names of objects' poses in robomimic (`object`), robosuite (`cubeA_pos`), RoboCasa
(`obj_to_robot0_eef_pos`) and Isaac Lab (`object`, `cube_positions`, `target_object_position`)."""
ACTIONS = re.compile(r"^(last_|prev_|previous_)?actions?$")
"""Isaac Lab's `actions`: the previous action among the observations."""


def not_measured(name: str, names: Iterable[str]) -> str | None:
    """Return why a vector of `obs` is no measurement of the robot, or None if it may be one.

    names: those of all members of the same `obs`.
    """
    if ACTIONS.search(name):
        return "the previous action, which the network gets anyway"
    of_robosuite = any(ROBOSUITE_ROBOT.match(other) for other in names)
    if OBJECTS.search(name) or (of_robosuite and not ROBOSUITE_ROBOT.match(name)):
        return "simulator state, which no robot measures"
    return None


def json_object(text: Any) -> dict[str, Any]:
    """Return the JSON object in a text attribute, or an empty one if there is none."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Member:
    """One member of `obs`: what it is, and what is done with it."""

    name: str
    kind: Literal["camera", "vector", "other"]
    shape: Shape | tuple[int] | None = None
    """(height, width) of a camera's frames, (K,) of a vector; None for others."""
    about: str = ""
    """What it holds, and how it is converted."""
    reason: str = ""
    """Why it is not used; empty if it is."""

    @property
    def is_used(self) -> bool:
        """Whether the policy gets it."""
        return not self.reason

    @property
    def text(self) -> str:
        """Whether and how it is used, in words."""
        if self.is_used:
            return f"{'camera' if self.kind == 'camera' else 'proprioception'} {self.about}"
        return f"not used: {self.reason}"


def members_of(observations: Any, wanted: Sequence[str] | None = None) -> list[Member]:
    """Return what each member of an open group `obs` is, or each of the names `wanted`.

    `reason` is set for those that cannot be used, or should not without the user's choice. Raises
    `UserError` for links that lead out of the file.
    """
    names, found = list(observations), []
    for name in names if wanted is None else wanted:
        require_printable("the member of obs", [name])
        stored = find_member(observations, name)
        is_array = isinstance(stored, h5py.Dataset) and stored.shape
        if is_array and (fault := outside_fault(stored)):
            raise UserError(f"obs/{name}: {fault[0]}; {fault[1]}")
        found.append(_member(name, stored, names))
    return found


def _member(name: str, stored: Any, names: Sequence[str]) -> Member:
    if reason := _why_neither(name, stored):
        return Member(name, "other", reason=reason)
    if _holds_images(stored):
        try:
            height, width, _ = decode_image(stored[0]).shape
        except OSError as error:
            raise UserError(f"obs/{name} at tick 0: {one_line(error)}; {TAKE_OUT}") from error
        return Member(name, "camera", (height, width), f"{width}x{height}, encoded")
    if (frame := frame_shape(stored)) is not None:
        words = {3: (), 4: ("alpha left out",)}.get(stored.shape[3], ("channels first",))
        words += () if stored.dtype == np.uint8 else (f"{stored.dtype} made uint8",)
        conversion = f" ({', '.join(words)})" if words else ""
        return Member(name, "camera", frame, f"{frame[1]}x{frame[0]}{conversion}")
    size = stored.shape[1] if stored.ndim == 2 else 1
    reason = not_measured(name, names) or ""
    if not reason and stored.dtype.kind != "f":
        reason = f"{stored.dtype} values rather than measurements"
    if reason:
        reason += "; name it with --proprioception to use it"
    return Member(name, "vector", (size,), f"of {size} value{'s' * (size > 1)}", reason)


def _holds_images(stored: Any) -> bool:
    """Return whether the rows are images: by the attribute, or by the first bytes of the first row."""
    named = stored.attrs.get("encoding") is not None
    return is_encoded(stored) and (named or (len(stored) > 0 and begins_an_image(stored[0])))


def _why_neither(name: str, stored: Any) -> str:
    """Return why a member can be neither a camera nor a vector; empty if it can."""
    if stored is None:
        return "a link that leads nowhere"
    if not isinstance(stored, h5py.Dataset):
        return "a group, and no array of one row a tick"
    if not stored.shape:
        return "a single value, and not one a tick"
    if "depth" in name.lower() and stored.ndim > 2:
        return "depth; the network takes RGB"
    kind, shape = stored.dtype.kind, stored.shape
    if _holds_images(stored):
        return "" if len(stored) else "JPEGs without a single one"
    is_vector = kind in "fiub" and stored.ndim in (1, 2) and 0 not in shape[1:]
    if is_vector or frame_shape(stored) is not None:
        return ""
    if len(shape) == 4 and shape[3] == 1:
        return "one channel (grey, depth or segmentation); the network takes RGB"
    rest = ", ".join(map(str, shape[1:]))
    return f"{stored.dtype} of shape (T, {rest}), neither RGB frames nor vectors"


DEFAULT_RATE_HZ = 5.0
"""The control rate if neither timestamps nor robosuite's `control_freq` give it."""
MAX_PERIOD_S = 3.0
"""Timestamps that are further apart than this are taken for another unit than seconds."""

MIN_BINARY_PORTION = 0.9
"""A gripper's values must be one of two in this portion of the ticks to be inferred as binary.

In the rest it may be on its way (5 % of the ticks of BridgeData V2)."""

COMMANDS = ((0.0, 1.0), (-1.0, 1.0))
"""The pairs of values by which grippers are commanded; -1 and 1 by robosuite and Isaac Lab."""
FLOAT_RANGES = (DEFAULT_RANGE, (0.0, 255.0))  # the ranges of float frames that are recognised
ROBOSUITE = 1
"""robomimic's type of environments whose `env_name` is a task's scene, and not a robot."""
Demo = tuple[Path, str]  # a file, and the name of a demo in it


@dataclass
class Survey:
    """What a pass over all demos found."""

    actions: list[npt.NDArray[np.float32]] = field(default_factory=list)
    """(T, A) of each demo."""
    members: list[Member] = field(default_factory=list)
    """Those of the first demo that has ticks, and cameras that only later ones have."""
    other_names: set[str] = field(default_factory=set)
    """Names of members of any demo."""
    intervals: list[npt.NDArray[np.float64]] = field(default_factory=list)
    """Time between ticks, in seconds, where timestamps say it."""
    frequencies: dict[float, Path] = field(default_factory=dict)
    """robosuite's `control_freq` -> the first file that has it."""
    brightest: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Camera with float frames -> their least and greatest value, in a few frames of each demo."""
    robot: str = "unknown"
    scene: str = ""
    """robosuite's `env_name`, such as one of LIBERO's kitchens; earlier versions took it for the robot."""

    @property
    def says_rate(self) -> bool:
        """Whether timestamps or `control_freq` say the control rate."""
        return bool(self.intervals or self.frequencies)


def survey(demos: Sequence[Demo], *, allow_external: bool = False) -> Survey:
    """Look through demos of files that carry no spec; each file is opened once.

    Raises `UserError` if there is no demo, if one of them is damaged, or if A differs.
    """
    if not demos:
        raise UserError("there is no demo to infer a spec from; give a file with data/demo_0")
    found = Survey()
    for path, group in groupby(demos, key=lambda demo: demo[0]):
        with open_file(path, allow_external=allow_external) as file:
            _survey_file(found, file, path)
            for _, name in group:
                _survey_demo(found, demo_group(file, name), path, name)
    return found


def infer_action_parts(actions: npt.NDArray[np.float32]) -> tuple[ActionPart, ...]:
    """Return the parts "continuous", "binary", "continuous_2", … of actions, in their order.

    A dimension is binary if its values lie between 0 and 1 or between -1 and 1, and are one of
    these two in nearly all ticks. actions: (n, A), of all episodes.
    """
    parts: list[ActionPart] = []
    for commands, dimensions in groupby(_commands(values) for values in actions.T):
        kind: Literal["continuous", "binary"] = "continuous" if commands is None else "binary"
        count = 1 + sum(part.kind == kind for part in parts)
        name, limits = kind if count == 1 else f"{kind}_{count}", commands or (-math.inf, math.inf)
        parts.append(ActionPart(name, len(list(dimensions)), "unknown", kind, *limits))
    return tuple(parts)


def _commands(values: npt.NDArray[np.float32]) -> tuple[float, float] | None:
    """Return the two commands that the values (n,) of one dimension stand for, or None."""
    for low, high in COMMANDS:
        middle = (low + high) / 2
        inside = ((values >= low) & (values <= high)).all()
        varies = (values > middle).any() and (values < middle).any()
        at_ends = (np.abs(values - low) < 1e-3) | (np.abs(values - high) < 1e-3)
        if inside and varies and at_ends.mean() >= MIN_BINARY_PORTION:
            return low, high
    return None


def inferred_rate_hz(found: Survey) -> float:
    """Return the control rate: that of the timestamps, or robosuite's `control_freq`, or 5 Hz.

    Raises `UserError` if files say different ones, or if timestamps are not in seconds.
    """
    if found.intervals:
        median = float(np.median(np.concatenate(found.intervals)))
        if median > MAX_PERIOD_S:
            raise UserError(
                f"the timestamps are {median:g} apart, and not in seconds; give rate_hz in a --spec file"
            )
        if median > 1 / RATES_HZ[1]:
            # Rounded to half a hertz, because jitter of the clock must not make specs differ.
            return round(2 / median) / 2
    if len(found.frequencies) > 1:
        (one, first), (other, second) = list(found.frequencies.items())[:2]
        raise UserError(
            f"{first} was recorded at {one:g} Hz and {second} at {other:g} Hz (control_freq); keep "
            "them apart, or give rate_hz in a --spec file"
        )
    return next(iter(found.frequencies), DEFAULT_RATE_HZ)


def float_range(camera: str, found: Survey) -> tuple[float, float]:
    """Return black and white of a camera's float frames. Raises `UserError` if they are unusual."""
    low, high = found.brightest.get(camera, DEFAULT_RANGE)
    for black, white in FLOAT_RANGES:
        slack = RANGE_SLACK * (white - black)
        if low >= black - slack and high <= white + slack:
            return black, white
    raise UserError(
        f"obs/{camera} has float frames with values from {low:g} to {high:g}, neither 0 to 1 nor 0 "
        "to 255; say what is black and white by `values` of the camera in a --spec file"
    )


def _survey_file(found: Survey, file: Any, path: Path) -> None:
    group = data_group(file)
    env_args = json_object(None if group is None else group.attrs.get("env_args"))
    kwargs = env_args.get("env_kwargs")
    env_kwargs = kwargs if isinstance(kwargs, dict) else {}
    name, robots = decoded(env_args.get("env_name")), env_kwargs.get("robots")
    if env_args.get("type") == ROBOSUITE or name.startswith("Libero_"):
        found.scene = found.scene or name
        name = "+".join(map(decoded, robots)) if isinstance(robots, list) else decoded(robots)
    if found.robot == "unknown":
        found.robot = one_line(name) or "unknown"
    frequency = env_kwargs.get("control_freq")
    if isinstance(frequency, int | float) and RATES_HZ[0] <= frequency <= RATES_HZ[1]:
        found.frequencies.setdefault(float(frequency), path)


def _survey_demo(found: Survey, demo: Any, path: Path, name: str) -> None:
    stored = find_member(demo, "actions")
    where = f"data/{name}/actions"
    if not isinstance(stored, h5py.Dataset) or stored.dtype.kind not in "fiub" or stored.ndim != 2:
        what = "is missing" if stored is None else "is no array of numbers of shape (T, A)"
        raise damaged(path, f"{where} {what}")
    if fault := storage_fault(stored, whole=True):
        raise damaged(path, f"{where}: {fault[0]}", fault[1])
    if not stored.shape[1]:
        raise damaged(path, f"{where} has shape {stored.shape}: no dimension")
    actions = np.asarray(stored, dtype=np.float32)
    size = found.actions[0].shape[1] if found.actions else actions.shape[1]
    if actions.shape[1] != size:
        raise UserError(
            f"{path}: {where} has shape {actions.shape}, others (T, {size}); keep robots apart"
        )
    found.actions.append(actions)
    observations = find_member(demo, "obs")
    if not isinstance(observations, h5py.Group):
        raise UserError(f"{path}: data/{name} has no group obs; leave it out by a mask, or add it")
    found.other_names.update(observations)
    if len(actions):
        _survey_members(found, observations)
    for name in (member.name for member in found.members if member.kind == "camera"):
        frames = find_member(observations, name)
        if isinstance(frames, h5py.Dataset) and frames.dtype.kind == "f" and len(frames):
            values = np.stack([frames[tick] for tick in {0, len(frames) // 2, len(frames) - 1}])
            low, high = found.brightest.get(name, (0.0, 0.0))
            low, high = min(low, values.min(initial=0.0)), max(high, values.max(initial=0.0))
            found.brightest[name] = (float(low), float(high))
    times = find_member(demo, "timestamps")
    if isinstance(times, h5py.Dataset) and times.ndim == 1 and times.dtype.kind in "fiu":
        steps = np.diff(times[()].astype(np.float64))
        found.intervals += [steps[np.isfinite(steps)]] if np.isfinite(steps).any() else []


def _survey_members(found: Survey, observations: Any) -> None:
    """Take in the members of the first demo, and cameras of later ones that it lacks.

    So the demo that lacks a camera is refused, whichever it is; otherwise all would lose that camera.
    """
    if not found.members:
        found.members = members_of(observations)
        return
    usable = {member.name for member in found.members if member.is_used}
    for member in members_of(observations, [name for name in observations if name not in usable]):
        if member.kind == "camera" and member.is_used:
            found.members = [each for each in found.members if each.name != member.name]
            found.members.append(member)


def member_lines(members: Sequence[Member]) -> Iterable[str]:
    """Return one line for each member that is not used, and one for all that are used."""
    used = [member for member in members if member.is_used]
    if used:
        yield "obs used: " + ", ".join(f"{member.name} ({member.text})" for member in used)
    for member in members:
        if not member.is_used:
            yield f"obs/{member.name} {member.text}"
