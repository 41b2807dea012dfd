"""Refuses inputs that cannot be true, by what the contract says about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import MalformedObservation, printable
from ttm_policy.contract.robot_contract import ImageSource, VectorSource


def require_frame_id(message: Any, source: ImageSource | VectorSource) -> None:
    """Raise `MalformedObservation` unless the header has the frame that the contract names, if any."""
    given = message.header.frame_id
    if source.frame_id and given != source.frame_id:
        raise MalformedObservation(
            f"'{source.name}' ({source.topic}) is in frame '{printable(given, 100)}'; the contract "
            f"accepts '{source.frame_id}': correct the driver's frame, or frame_id in the contract"
        )


def require_contrast(frame: npt.NDArray[np.uint8], source: ImageSource) -> None:
    """Raise `MalformedObservation` for a frame (H, W, 3) that is nearly of one colour, such as black."""
    if not source.min_contrast:
        return
    contrast = float(frame.mean(axis=2, dtype=np.float32).std())
    if contrast < source.min_contrast:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) has a contrast of {contrast:.1f}; the contract asks "
            f"for {source.min_contrast:g}: is its lens covered, or the scene dark?"
        )


def require_plausible(values: npt.NDArray[np.float32], source: VectorSource) -> None:
    """Raise `MalformedObservation` for values (K,) outside of the bounds of the contract.

    NaN passes here; the policy's own check of an observation names it.
    """
    for value, field in zip(values, source.fields, strict=True):
        ends = np.float32(field.minimum * field.scale), np.float32(field.maximum * field.scale)
        if value < min(ends) or value > max(ends):
            raise MalformedObservation(
                f"'{field.path}' of '{source.name}' ({source.topic}) is {value / field.scale:g}; the "
                f"contract accepts {field.minimum:g} to {field.maximum:g}: check the sensor, or correct "
                "min and max"
            )
