"""Access to one HDF5 file of episodes: opening it, its spec, its masks, and the names of its demos.

A demo is one episode in the file, the group `data/demo_<i>`, as robomimic calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from ttm.datasets.layout import natural_key
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Open `path` as an `h5py.File` for reading; raise `UserError` if HDF5 cannot open it."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise damaged(path, f"HDF5 cannot open it ({error})") from error
    with file:
        yield file


def damaged(path: Path, what: str) -> UserError:
    """Return the error for a file that is not a complete data set."""
    return UserError(
        f"{path}: {what}; `ttm data check {path}` names every fault, then delete or re-record it"
    )


def read_stored_spec(file: Any) -> PolicySpec | None:
    """Return the spec that an open file carries, or None if another program wrote the file."""
    text = decoded(file["data"].attrs.get("ttm_spec")) if "data" in file else ""
    return PolicySpec.from_json(text) if text else None


def read_masks(file: Any) -> dict[str, list[str]]:
    """Return the masks of an open file: filter key -> names of demos."""
    group = file.get("mask", {})
    return {key: [decoded(name) for name in group[key][()]] for key in group}


def demo_names(file: Any) -> list[str]:
    """Return the names of the demos of an open file, demo_2 before demo_10."""
    return sorted(file.get("data", {}), key=natural_key)


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the datasets that a demo of `spec` must have, with the shape of one tick of each."""
    shapes: dict[str, tuple[int, ...]] = {"actions": (spec.action_size,)}
    shapes |= {f"obs/{camera.name}": (camera.height, camera.width, 3) for camera in spec.cameras}
    return shapes | {f"obs/{vector.name}": (vector.size,) for vector in spec.proprioception}


def decoded(value: Any) -> str:
    """Return a text attribute, which may be bytes, str or missing (None), as str."""
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
