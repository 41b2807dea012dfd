"""Checks of actions against what a `PolicySpec` allows, and of the weights of ticks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec

LARGEST = 1e15
"""Actions and weights beyond this, which no robot has, overflow float32 where a training squares them."""


def validate_action(spec: PolicySpec, action: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the action as (A,) float32.

    Raises `UserError` if its shape is not the spec's, or if a value is not finite, not binary where
    it must be, or outside its limits.
    """
    values = np.asarray(action, dtype=np.float32)
    if values.shape != (spec.action_size,):
        names = ", ".join(f"{part.name}[{part.size}]" for part in spec.actions)
        raise UserError(
            f"the action has shape {values.shape}; the spec wants ({spec.action_size},): {names}"
        )
    for part in spec.actions:
        bad = outside_limits(part, values[spec.action_slices[part.name]])
        if bad.any():
            where = int(np.flatnonzero(bad)[0])
            value = values[spec.action_slices[part.name]][where]
            raise UserError(
                f"action '{part.name}'[{where}] is {value}; the spec wants {limits_text(part)}: "
                "clip or threshold the command before recording it"
            )
    return values


def outside_limits(part: ActionPart, values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return where `values` are not finite or not what the part may command.

    values: (..., size) -> bool of the same shape. Limits have a slack for rounding to float32.
    """
    low, high = np.array(part.limits, np.float32)
    if part.kind == "binary":
        return np.asarray((values != low) & (values != high))
    slack = 1e-5 * np.maximum(1.0, np.nan_to_num([abs(part.low), abs(part.high)], posinf=0.0).max())
    return np.asarray(
        ~((values >= part.low - slack) & (values <= part.high + slack) & np.isfinite(values))
    )


def usable_weights(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Return which values can weigh a tick in a loss: those from 0 to `LARGEST`."""
    usable: npt.NDArray[np.bool_] = (weights >= 0) & (weights <= LARGEST)
    return usable


def limits_text(part: ActionPart) -> str:
    """Return in words what the part may command, with its unit."""
    if part.kind == "binary":
        return f"{part.limits[0]:g} or {part.limits[1]:g}"
    unit = f" {part.unit}" if part.unit else ""
    return (
        f"{part.low:g} to {part.high:g}{unit}"
        if math.isfinite(part.high - part.low)
        else f"finite values{unit}"
    )
