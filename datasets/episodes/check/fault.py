"""What a check finds: faults, and the demos that they are found in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.observations.stored_camera import StoredCamera
from ttm.datasets.observations.structure import TAKE_OUT
from ttm.policy.spec import PolicySpec


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
