"""Every member of a demo's `obs`, and whether a policy can and does use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import h5py
import numpy as np

from ttm.datasets.access.links import find_member
from ttm.datasets.access.storage import outside_fault
from ttm.datasets.access.unreadable import one_line
from ttm.datasets.frames import decode_image
from ttm.datasets.observations.simulator_state import not_measured
from ttm.datasets.observations.stored_camera import (
    Shape,
    begins_an_image,
    frame_shape,
    is_encoded,
)
from ttm.datasets.observations.structure import TAKE_OUT
from ttm.policy.errors import UserError

Kind = Literal["camera", "vector", "other"]


@dataclass(frozen=True)
class Member:
    """One member of `obs`: what it is, and what is done with it."""

    name: str
    kind: Kind
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
        """Return in words whether and how it is used."""
        if self.is_used:
            return f"{'camera' if self.kind == 'camera' else 'proprioception'} {self.about}"
        return f"not used: {self.reason}"


def members_of(
    observations: Any, wanted: Sequence[str] | None = None, *, allow_external: bool = False
) -> list[Member]:
    """Return what each member of an open group `obs` is, or each of the names `wanted`.

    `reason` is set for those that cannot be used, or should not without the user's choice. Raises
    `UserError` for links that lead out of the file.
    """
    names = list(observations)
    found = []
    for name in names if wanted is None else wanted:
        if name != one_line(name):
            raise UserError(
                f"obs has the member '{one_line(name)}', which cannot be printed; rename it"
            )
        stored = find_member(observations, name, allow_external=allow_external)
        if stored is None:
            found.append(Member(name, "other", reason="a link that leads nowhere"))
        elif not isinstance(stored, h5py.Dataset):
            found.append(Member(name, "other", reason="a group, and no array of one row a tick"))
        elif not stored.shape:
            found.append(Member(name, "other", reason="a single value, and not one a tick"))
        else:
            found.append(_member(name, stored, names, allow_external))
    return found


def _member(name: str, stored: Any, names: Sequence[str], allow_external: bool) -> Member:
    if not allow_external and (fault := outside_fault(stored)):
        raise UserError(f"obs/{name}: {fault[0]}; {fault[1]}")
    if "depth" in name.lower() and stored.ndim > 2:
        return Member(name, "other", reason="depth; the network takes RGB")
    if _is_image_rows(stored):
        return _encoded_camera(name, stored)
    if (size := frame_shape(stored)) is not None:
        return Member(name, "camera", size, f"{size[1]}x{size[0]}{_conversion(stored)}")
    if stored.dtype.kind in "fiub" and stored.ndim in (1, 2) and 0 not in stored.shape[1:]:
        return _vector(name, stored, names)
    return Member(name, "other", reason=_why_neither(stored))


def _is_image_rows(stored: Any) -> bool:
    """Return whether the rows are images: by the attribute, or by the first bytes of the first row."""
    if stored.attrs.get("encoding") is not None:
        return is_encoded(stored)
    return is_encoded(stored) and len(stored) > 0 and begins_an_image(stored[0])


def _encoded_camera(name: str, stored: Any) -> Member:
    if not len(stored):
        return Member(name, "other", reason="JPEGs without a single one")
    try:
        height, width, _ = decode_image(stored[0]).shape
    except OSError as error:
        raise UserError(f"obs/{name} at tick 0: {one_line(error)}; {TAKE_OUT}") from error
    return Member(name, "camera", (height, width), f"{width}x{height}, encoded")


def _conversion(stored: Any) -> str:
    words = []
    if stored.shape[3] not in (3, 4):
        words.append("channels first")
    elif stored.shape[3] == 4:
        words.append("alpha left out")
    if stored.dtype != np.uint8:
        words.append(f"{stored.dtype} made uint8")
    return f" ({', '.join(words)})" if words else ""


def _vector(name: str, stored: Any, names: Sequence[str]) -> Member:
    size = (stored.shape[1] if stored.ndim == 2 else 1,)
    about = f"of {size[0]} values" if size[0] > 1 else "of 1 value"
    reason = not_measured(name, names) or ""
    if not reason and stored.dtype.kind != "f":
        reason = f"{stored.dtype} values rather than measurements"
    if reason:
        reason += "; name it with --proprioception to use it"
    return Member(name, "vector", size, about, reason)


def _why_neither(stored: Any) -> str:
    kind, shape = stored.dtype.kind, stored.shape
    if stored.dtype.names:
        return "a compound type"
    if kind in "SUO":
        return "texts or objects"
    if kind == "c":
        return "complex numbers"
    if len(shape) == 4 and shape[3] == 1:
        return "one channel (grey, depth or segmentation); the network takes RGB"
    if len(shape) == 4:
        return f"{stored.dtype} frames of shape {shape[1:]}; the network takes RGB"
    return f"{stored.dtype} of shape (T, {str(shape[1:])[1:]}, neither RGB frames nor vectors"
