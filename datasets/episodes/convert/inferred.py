"""The spec of data that say little about themselves, from names, sizes and the values of their actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.spec_inference import infer_action_parts
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec


def inferred_spec(
    *,
    robot: str,
    cameras: Mapping[str, tuple[int, int]],
    vectors: Mapping[str, Sequence[str]],
    actions: Sequence[ActionPart],
    rate_hz: float,
) -> PolicySpec:
    """Return the spec of cameras (name -> height, width), vectors (name -> labels) and action parts."""
    return PolicySpec(
        robot=robot,
        cameras=tuple(CameraSpec(name, *size) for name, size in cameras.items()),
        proprioception=tuple(
            ProprioceptionSpec(name, tuple(labels)) for name, labels in vectors.items()
        ),
        actions=tuple(actions),
        rate_hz=rate_hz,
    )


def index_labels(name: str, size: int) -> tuple[str, ...]:
    """Return the labels of a vector whose values have no names: name[0], name[1], …"""
    return tuple(f"{name}[{i}]" for i in range(size))


def survey_actions(
    episodes: Iterable[npt.NDArray[Any]], where: str
) -> tuple[tuple[ActionPart, ...], list[str]]:
    """Return the action parts of all episodes, and a note if float32 does not hold the values.

    Raises `UserError` if there is no episode, or if their actions are not all (T, A) with one A.
    """
    found: list[npt.NDArray[np.float32]] = []
    lost = 0.0
    for number, actions in enumerate(episodes):
        if actions.ndim != 2 or (found and actions.shape[1] != found[0].shape[1]):
            raise UserError(
                f"{where}: the actions of episode {number} have shape {actions.shape}, others "
                f"(T, {found[0].shape[1] if found else 'A'}); keep robots in data sets of their own"
            )
        found.append(actions.astype(np.float32))
        lost = max(lost, _rounding_error(actions, found[-1]))
    if not found:
        raise UserError(f"{where} has no episode; check the path")
    note = (
        f"actions are rounded from {actions.dtype} to float32; they change by up to {lost:.2g}"
        if lost
        else ""
    )
    return infer_action_parts(np.concatenate(found)), [note] if note else []


def _rounding_error(values: npt.NDArray[Any], rounded: npt.NDArray[np.float32]) -> float:
    difference = np.abs(values.astype(np.float64) - rounded.astype(np.float64))
    return float(np.nan_to_num(difference, nan=0.0, posinf=0.0).max(initial=0.0))
