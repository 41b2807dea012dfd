"""What can be wrong with one demo, apart from its pictures: structure, values, limits, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import expected_shapes
from ttm.datasets.episode_writer import limits_text, outside_limits
from ttm.datasets.layout import JPEG
from ttm.policy.spec import ActionPart, PolicySpec

MAX_GAP_PERIODS = 2.5
"""A gap between ticks is a fault from so many control periods on: two ticks or more were lost."""

RATE_TOLERANCE = 0.25
"""A measured rate that is off by more than this share is not the one that the spec says."""

DELETE = "re-record or delete this episode"


@dataclass(frozen=True)
class Fault:
    """One thing wrong: where, what, and how to mend it. `tick` is the first of the ticks concerned.

    A warning is something to look at that may be as it should be; it does not fail the check.
    """

    path: Path
    demo: str | None
    tick: int | None
    what: str
    mend: str
    is_warning: bool = False


@dataclass(frozen=True)
class Demo:
    """An open demo, where it lies, and what it should be. `inferred`: the spec is a guess from the data."""

    path: Path
    name: str
    group: Any
    spec: PolicySpec
    inferred: bool

    def fault(
        self, what: str, mend: str, tick: int | None = None, *, is_warning: bool = False
    ) -> Fault:
        """A fault of this demo."""
        return Fault(self.path, self.name, tick, what, mend, is_warning)


def runs(flags: npt.ArrayLike) -> list[tuple[int, int]]:
    """flags: (T,) bool -> (first, last) of every run of True."""
    edges = np.flatnonzero(
        np.diff(np.concatenate([[False], np.asarray(flags), [False]]).astype(np.int8))
    )
    return [
        (int(first), int(stop) - 1) for first, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def ticks_text(first: int, last: int) -> str:
    """A run of ticks in words."""
    return f"at tick {first}" if first == last else f"at ticks {first} to {last}"


def structure_faults(demo: Demo) -> Iterator[Fault]:
    """Datasets that are missing or of another shape: the demo cannot be read by its spec."""
    group = demo.group
    for key, shape in expected_shapes(demo.spec).items():
        if not isinstance(group.get(key), h5py.Dataset):
            yield demo.fault(
                f"{key} is missing", f"{DELETE}, or keep it apart from those that have it"
            )
        elif _tick_shape(group[key]) != (() if group[key].attrs.get("encoding") == JPEG else shape):
            yield demo.fault(
                f"{key} has shape {group[key].shape}, not (T, {str(shape)[1:]}",
                f"{DELETE}, or keep episodes of different robots in different folders",
            )


def length_faults(demo: Demo) -> Iterator[Fault]:
    """Datasets, and the attribute num_samples, that tell another length than the actions."""
    length = len(demo.group["actions"])
    if length == 0:
        yield demo.fault("it has no tick", DELETE)
    for key in (*expected_shapes(demo.spec), "executed_actions", "timestamps", "rewards", "dones"):
        stored = demo.group.get(key)
        if isinstance(stored, h5py.Dataset) and len(stored) != length:
            shorter = min(len(stored), length)
            yield demo.fault(f"{key} has {len(stored)} ticks, actions {length}", DELETE, shorter)
    declared = demo.group.attrs.get("num_samples")
    if declared is None or int(declared) != length:
        said = "is missing" if declared is None else f"says {declared}"
        yield demo.fault(
            f"attribute num_samples {said}, there are {length} actions",
            f"set it to {length}, or {DELETE}",
        )


def value_faults(demo: Demo) -> Iterator[Fault]:
    """Actions and proprioception that are not finite; actions that the spec does not allow."""
    for key in ("actions", *(f"obs/{vector.name}" for vector in demo.spec.proprioception)):
        bad = ~np.isfinite(demo.group[key][()])  # (T, K)
        for first, last in runs(bad.any(axis=1)):
            where = np.flatnonzero(bad[first : last + 1].any(axis=0)).tolist()
            yield demo.fault(
                f"{key}{where} is NaN or infinite {ticks_text(first, last)}", DELETE, first
            )
    actions = np.asarray(demo.group["actions"], dtype=np.float32)
    for part in demo.spec.actions:
        yield from _limit_faults(demo, part, actions[:, demo.spec.action_slices[part.name]])


def clock_faults(demo: Demo) -> Iterator[Fault]:
    """Timestamps that run backwards, repeat, leave gaps, or tell another rate than the spec."""
    if "timestamps" not in demo.group:
        return
    times = np.asarray(demo.group["timestamps"], dtype=np.float64)
    for first, last in runs(~np.isfinite(times)):
        yield demo.fault(f"timestamps are NaN or infinite {ticks_text(first, last)}", DELETE, first)
    if len(times) < 2 or not np.isfinite(times).all():
        return
    steps, period = np.diff(times), demo.spec.control_dt_s
    for first, last in runs(steps < 0):
        what = (
            f"timestamps run backwards by {-steps[first]:.3f} s {ticks_text(first + 1, last + 1)}"
        )
        yield demo.fault(
            what, f"{DELETE}; was the clock set, or another sensor's stamp taken?", first + 1
        )
    for first, last in runs(steps == 0):
        what = f"timestamps repeat {ticks_text(first + 1, last + 1)}"
        yield demo.fault(
            what, f"{DELETE}; the recorder read the sensors faster than they answered", first + 1
        )
    for tick in np.flatnonzero(steps > MAX_GAP_PERIODS * period).tolist():
        what = f"gap of {steps[tick]:.3f} s before tick {tick + 1}; the control period is {period:.3f} s"
        yield demo.fault(
            what, f"{DELETE}, or split it there; was the recorder's machine overloaded?", tick + 1
        )
    yield from _rate_faults(demo, float(np.median(steps)))


def _rate_faults(demo: Demo, median_s: float) -> Iterator[Fault]:
    if median_s > 0 and abs(1 / median_s - demo.spec.rate_hz) > RATE_TOLERANCE * demo.spec.rate_hz:
        what = f"recorded at {1 / median_s:.2f} Hz, the spec says {demo.spec.rate_hz:g} Hz"
        yield demo.fault(what, "record at the rate at which the policy will run", is_warning=True)


def _tick_shape(dataset: Any) -> tuple[int, ...]:
    return tuple(dataset.shape[1:])


def _limit_faults(demo: Demo, part: ActionPart, values: npt.NDArray[np.float32]) -> Iterator[Fault]:
    if demo.inferred:
        return  # limits that were guessed from these very values prove nothing
    bad = outside_limits(part, values) & np.isfinite(values)  # (T, size)
    for first, last in runs(bad.any(axis=1)):
        worst = values[first : last + 1][bad[first : last + 1]]
        extreme = float(worst[np.abs(worst).argmax()])
        what = f"action '{part.name}' reaches {extreme:g} {ticks_text(first, last)}, outside {limits_text(part)}"
        yield demo.fault(
            what, f"clip it when recording, mend the limits of the spec, or {DELETE}", first
        )
