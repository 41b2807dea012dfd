"""Faults of one demo apart from its camera frames: structure, values, limits, timestamps."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.access.unreadable import one_line
from ttm.datasets.action_checks import LARGEST, limits_text, outside_limits, usable_weights
from ttm.datasets.check.fault import Demo, Fault, runs, ticks_text
from ttm.datasets.episode_file import decoded, instruction_of
from ttm.datasets.episode_reader import whole_number
from ttm.datasets.observations.structure import (
    LEAVE_OUT,
    TAKE_OUT,
    expected_shapes,
    structure_problems,
)
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart

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
