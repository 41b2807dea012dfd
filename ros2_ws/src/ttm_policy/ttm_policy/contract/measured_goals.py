"""Says where a robot stands as an action, what would keep it there, and what tells its motion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec
from ttm_policy.contract.robot_contract import JOINT_TYPES, Field, RobotContract, VectorSource

Vector = npt.NDArray[np.float32]


def measured_goals(
    contract: RobotContract, spec: PolicySpec, observation: Mapping[str, npt.NDArray[Any]]
) -> Vector:
    """Return the action (A,) that keeps the robot where the observation shows it.

    Velocities are 0, goals of joints their measured positions, or the nearer one of two commands. Goals
    of joints that no observation measures are NaN.
    """
    goals = np.zeros(spec.action_size, np.float32)
    for sink in contract.actions:
        if sink.type in JOINT_TYPES:
            where = spec.action_slices[sink.name]
            fields = sink.fields[: where.stop - where.start]
            goals[where] = [_goal(field, contract, observation) for field in fields]
    low, high = spec.action_limits
    nearer = np.where(goals >= spec.thresholds, high, low)
    return np.where(spec.binary_mask & np.isfinite(goals), nearer, goals).astype(np.float32)


def goal_sources(contract: RobotContract) -> tuple[VectorSource, ...]:
    """Return the observations that measure where the joints of the action are."""
    paths = [f.path for s in contract.actions if s.type in JOINT_TYPES for f in s.fields]
    found = [contract.measurement_of(path) for path in paths]
    names = {source.name for source, _ in filter(None, found)}
    return tuple(source for source in contract.vectors if source.name in names)


def _goal(
    field: Field, contract: RobotContract, observation: Mapping[str, npt.NDArray[Any]]
) -> float:
    measured = contract.measurement_of(field.path)
    if measured is None:
        return float("nan")
    source, place = measured
    return float(observation[source.name][place]) / source.fields[place].scale / field.scale


def measured_places(source: VectorSource, path: str) -> tuple[int, ...]:
    """Return the places of an observation that tell the velocity for a command's field.

    path: such as `twist.linear.x`. One place measures that velocity or the position along it, four are
    the orientation x, y, z, w. Empty if nothing in the observation tells it.
    """
    kind, axis = path.split(".")[-2:]
    turn = [f"orientation.{each}" for each in "xyzw"]
    paths = [f".{field.path}" for field in source.fields]
    for names in ([f"{kind}.{axis}"], [f"position.{axis}"] if kind == "linear" else turn):
        found = [i for name in names for i, each in enumerate(paths) if each.endswith(f".{name}")]
        if len(found) == len(names):
            return tuple(found)
    return ()
