"""What a runner accepts: snapshots, as bytes of a file or a message, and observations by their age."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import StaleObservation, UserError, require_instruction
from ttm.policy.execution import EXECUTION, PLAN, Execution, Plan
from ttm.policy.spec import Array, PolicySpec

MOST_BYTES = 1 << 27
"""The size of the largest snapshot: those of the presets have some kB, and long histories some MB."""

_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Version of NumPy's format -> what reads the head of an array. `np.savez` writes no other one."""
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a hostile archive may raise."""


def snapshot_to_bytes(snapshot: Mapping[str, Array]) -> bytes:
    """Encode the result of `PolicyRunner.snapshot` in NumPy's .npz format."""
    file = io.BytesIO()
    np.savez(file, **snapshot)  # type: ignore[arg-type]
    return file.getvalue()


def snapshot_from_bytes(data: bytes) -> dict[str, Array]:
    """Decode a snapshot for `PolicyRunner.restore`. This never unpickles.

    Raises `UserError` for anything but a whole snapshot of at most `MOST_BYTES`.
    """
    try:
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise ValueError("no .npz archive, or not a whole one")
        _require_declared(io.BytesIO(data))
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except UNREADABLE as error:
        raise UserError(f"{len(data)} bytes are no snapshot ({error}); give a whole one") from error


def read_snapshot(path: Path) -> dict[str, Array]:
    """Return the snapshot in a file. Raises `OSError`, and `UserError` as `snapshot_from_bytes`."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UserError(f"{size} bytes are no snapshot; one has at most {MOST_BYTES}")
    return snapshot_from_bytes(path.read_bytes())


def _require_declared(file: io.BytesIO) -> None:
    """Raise `ValueError` unless the arrays are as large as they say, and small enough together."""
    with zipfile.ZipFile(file) as archive:
        total = sum(info.file_size for info in archive.infolist())
        if total > MOST_BYTES:
            raise ValueError(f"its arrays have {total} bytes; at most {MOST_BYTES} are accepted")
        for info in archive.infolist():
            with archive.open(info) as entry:
                read_head = _HEADS[np.lib.format.read_magic(entry)]
                shape, _, kind = read_head(entry)
            if math.prod(shape) * kind.itemsize > info.file_size:
                raise ValueError(f"'{info.filename}' has {info.file_size} bytes for shape {shape}")


def require_restorable(
    snapshot: Mapping[str, Array], spec: PolicySpec, numbers: Mapping[str, Array]
) -> None:
    """Raise `UserError` unless a runner of a policy can continue from `snapshot`.

    spec: the policy's. numbers: entries that must have the shapes that they have here, and be finite.
    """
    missing = sorted({*numbers, "spec", "tick", "instruction"} - set(snapshot))
    if missing:
        raise UserError(f"the snapshot lacks {', '.join(missing)}; give one that snapshot() made")
    theirs = PolicySpec.from_json(array_to_text(snapshot["spec"]))
    spec.require_compatible(theirs, theirs="the snapshot", ours="this policy")
    require_instruction(array_to_text(snapshot["instruction"]), "the snapshot's instruction")
    tick = np.asarray(snapshot["tick"])
    if tick.shape or tick.dtype.kind not in "iu" or tick < 0:
        raise UserError("the snapshot's tick is no whole number; give one that snapshot() made")
    for name, value in numbers.items():
        _require_fit(name, np.asarray(snapshot[name]), value)


def _require_fit(name: str, given: Array, like: Array) -> None:
    """Raise `UserError` unless an array has the shape of `like`, and finite numbers."""
    if given.shape != like.shape or given.dtype.kind not in "biuf" or not np.isfinite(given).all():
        raise UserError(
            f"the snapshot's '{name}' is missing, not finite, or not of shape {like.shape}; restore it "
            "into the policy that it was taken from"
        )


def plan_entries(execution: Execution, plan: Plan) -> dict[str, Array]:
    """Return the entries of a snapshot for a plan; none for an execution that keeps nothing."""
    copies = {PLAN + name: value.copy() for name, value in plan.items()}
    return {EXECUTION: text_to_array(execution.name), **copies} if plan else {}


def plan_of(snapshot: Mapping[str, Array], execution: Execution) -> Plan:
    """Return the plan of a snapshot, or a new one if another execution made the snapshot.

    Raises `UserError` if the entries of the plan have other shapes, or are not finite.
    """
    plan = execution.initial_plan()
    if EXECUTION not in snapshot or array_to_text(snapshot[EXECUTION]) != execution.name:
        return plan
    for name, now in plan.items():
        given = np.asarray(snapshot.get(PLAN + name))
        _require_fit(PLAN + name, given, now)
        plan[name] = given.astype(now.dtype)
    return plan


def text_to_array(text: str) -> npt.NDArray[np.uint8]:
    return np.array(list(text.encode()), np.uint8)


def array_to_text(values: Array) -> str:
    """Return the text that `text_to_array` made an entry of. Raises `UserError` if it is none."""
    try:
        return np.asarray(values, np.uint8).tobytes().decode()
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError("the snapshot holds no text; give one that snapshot() made") from error


def require_fresh(age_s: float, max_age_s: float) -> None:
    """Raise `StaleObservation` unless the age of an observation lies within `max_age_s` of zero.

    The age is the time now minus the time of capture, in seconds. It is negative where the stamp is
    ahead of the clock, so that the true age is unknown; `max_age_s` leaves room for small differences
    between clocks. NaN is refused.
    """
    if not abs(age_s) <= max_age_s:
        problem = "ahead of the clock" if age_s < 0 else "old"
        raise StaleObservation(
            f"the observation is {abs(age_s):.3f} s {problem}; at most {max_age_s} s is accepted: "
            "check the sensors and that all clocks agree, or raise max_age_s"
        )
