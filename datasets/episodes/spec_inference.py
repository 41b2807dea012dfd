"""The `PolicySpec` of files that carry none, such as those of robomimic, robosuite and LIBERO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.access.links import find_member
from ttm.datasets.access.storage import storage_fault
from ttm.datasets.access.unreadable import one_line
from ttm.datasets.episode_file import damaged, data_group, decoded, demo_group, open_file
from ttm.datasets.observations.members import Member, members_of
from ttm.datasets.observations.simulator_state import json_object
from ttm.datasets.observations.stored_camera import DEFAULT_RANGE, RANGE_SLACK
from ttm.policy.errors import UserError
from ttm.policy.spec import RATES_HZ, ActionPart

DEFAULT_RATE_HZ = 5.0
"""The control rate if neither timestamps nor robosuite's `control_freq` give it."""

MAX_PERIOD_S = 3.0
"""Timestamps that are further apart than this are taken for another unit than seconds."""

MIN_BINARY_PORTION = 0.9
"""A gripper's values must be one of two in this portion of the ticks to be inferred as binary.

The rest leaves room for ticks in which it is on its way (5 % of the ticks of BridgeData V2)."""

COMMANDS = ((0.0, 1.0), (-1.0, 1.0))
"""The pairs of values by which grippers are commanded; -1 and 1 by robosuite and Isaac Lab."""

FLOAT_RANGES = (DEFAULT_RANGE, (0.0, 255.0))
"""The ranges of float frames that are recognised."""

ROBOSUITE = 1
"""robomimic's type of environments whose `env_name` is a task's scene, and not a robot."""

Demo = tuple[Path, str]
"""A file, and the name of a demo in it."""


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
        raise UserError(
            "there is no demo to infer a spec from; record one, or give a file that has data/demo_0"
        )
    found = Survey()
    for path, group in groupby(demos, key=lambda demo: demo[0]):
        with open_file(path) as file:
            _survey_file(found, file, path, allow_external)
            for _, name in group:
                demo = demo_group(file, name, allow_external=allow_external)
                _survey_demo(found, demo, path, name, allow_external)
    return found


def infer_action_parts(actions: npt.NDArray[np.float32]) -> tuple[ActionPart, ...]:
    """Return the parts "continuous", "binary", "continuous_2", … of actions, in their order.

    A dimension is binary if its values lie between 0 and 1 or between -1 and 1, and are one of
    these two in nearly all ticks. actions: (n, A), of all episodes.
    """
    kinds = [_commands(values) for values in actions.T]
    parts: list[ActionPart] = []
    for commands, dimensions in groupby(kinds):
        stem = "continuous" if commands is None else "binary"
        count = 1 + sum(part.kind == stem for part in parts)
        name = stem if count == 1 else f"{stem}_{count}"
        low, high = commands or (-math.inf, math.inf)
        size = len(list(dimensions))
        kind = "continuous" if commands is None else "binary"
        parts.append(ActionPart(name, size, "unknown", kind, low, high))  # type: ignore[arg-type]
    return tuple(parts)


def inferred_rate_hz(found: Survey) -> float:
    """Return the control rate: that of the timestamps, or robosuite's `control_freq`, or 5 Hz.

    Raises `UserError` if files say different ones, or if timestamps are not in seconds.
    """
    if found.intervals:
        median = float(np.median(np.concatenate(found.intervals)))
        if median > MAX_PERIOD_S:
            raise UserError(
                f"the timestamps are {median:g} apart, and are taken for seconds; write them in "
                "seconds, or give rate_hz in a --spec file"
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


def _survey_file(found: Survey, file: Any, path: Path, allow_external: bool) -> None:
    group = data_group(file, allow_external=allow_external)
    env_args = json_object(None if group is None else group.attrs.get("env_args"))
    env_kwargs = env_args.get("env_kwargs")
    env_kwargs = env_kwargs if isinstance(env_kwargs, dict) else {}
    name, robots = decoded(env_args.get("env_name")), env_kwargs.get("robots")
    if env_args.get("type") == ROBOSUITE or name.startswith("Libero_"):
        found.scene = found.scene or name
        name = "+".join(map(decoded, robots)) if isinstance(robots, list) else decoded(robots)
    if found.robot == "unknown":
        found.robot = one_line(name) or "unknown"
    frequency = env_kwargs.get("control_freq")
    if isinstance(frequency, int | float) and RATES_HZ[0] <= frequency <= RATES_HZ[1]:
        found.frequencies.setdefault(float(frequency), path)


def _survey_demo(found: Survey, demo: Any, path: Path, name: str, allow_external: bool) -> None:
    actions = _actions(demo, path, name, allow_external)
    if found.actions and actions.shape[1] != found.actions[0].shape[1]:
        raise UserError(
            f"{path}: data/{name}/actions has shape {actions.shape}, others "
            f"(T, {found.actions[0].shape[1]}); keep episodes of different robots in different folders"
        )
    found.actions.append(actions)
    observations = find_member(demo, "obs", allow_external=allow_external)
    if not isinstance(observations, h5py.Group):
        raise UserError(
            f"{path}: data/{name} has no group obs, so nothing says what the robot saw; leave it out "
            "by a mask, or write its observations"
        )
    found.other_names.update(observations)
    if len(actions):
        _survey_members(found, observations, allow_external)
    _survey_brightness(found, observations, allow_external)
    times = find_member(demo, "timestamps", allow_external=allow_external)
    if isinstance(times, h5py.Dataset) and times.ndim == 1 and times.dtype.kind in "fiu":
        steps = np.diff(times[()].astype(np.float64))
        found.intervals += [steps[np.isfinite(steps)]] if np.isfinite(steps).any() else []


def _actions(demo: Any, path: Path, name: str, allow_external: bool) -> npt.NDArray[np.float32]:
    stored = find_member(demo, "actions", allow_external=allow_external)
    where = f"data/{name}/actions"
    if not isinstance(stored, h5py.Dataset) or stored.dtype.kind not in "fiub" or stored.ndim != 2:
        what = "is missing" if stored is None else "is no array of numbers of shape (T, A)"
        raise damaged(path, f"{where} {what}")
    if fault := storage_fault(stored, whole=True, allow_external=allow_external):
        raise damaged(path, f"{where}: {fault[0]}", fault[1])
    if not stored.shape[1]:
        raise damaged(path, f"{where} has shape {stored.shape}: no dimension")
    return np.asarray(stored, dtype=np.float32)


def _survey_members(found: Survey, observations: Any, allow_external: bool) -> None:
    """Take in the members of the first demo, and cameras of later ones that it lacks.

    So the demo that lacks a camera is refused, whichever it is; otherwise all would lose that camera.
    """
    if not found.members:
        found.members = members_of(observations, allow_external=allow_external)
        return
    usable = {member.name for member in found.members if member.is_used}
    others = [name for name in observations if name not in usable]
    for member in members_of(observations, others, allow_external=allow_external):
        if member.kind == "camera" and member.is_used:
            found.members = [each for each in found.members if each.name != member.name]
            found.members.append(member)


def _survey_brightness(found: Survey, observations: Any, allow_external: bool) -> None:
    for member in found.members:
        if member.kind != "camera":
            continue
        stored = find_member(observations, member.name, allow_external=allow_external)
        if isinstance(stored, h5py.Dataset) and stored.dtype.kind == "f" and len(stored):
            rows = [stored[tick] for tick in {0, len(stored) // 2, len(stored) - 1}]
            _widen(found, member.name, rows)


def _widen(found: Survey, camera: str, rows: Iterable[npt.NDArray[Any]]) -> None:
    low, high = found.brightest.get(camera, (0.0, 0.0))
    values = np.stack(list(rows))
    found.brightest[camera] = (
        min(low, float(values.min(initial=0.0))),
        max(high, float(values.max(initial=0.0))),
    )
