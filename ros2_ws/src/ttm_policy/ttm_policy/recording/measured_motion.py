"""Actions that are no command, but what the robot was measured to do from one tick to the next.

A part of the action says so by the key `measured` of the contract, which names an observation.

=============================  =====================================================================
velocity, by a measured pose   displacement, or rotation in the fixed frame, until the next tick
velocity, by a measured one    the velocity at the next tick
goal of a joint                where the joint is at the next tick; the nearer one of two goals
=============================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import MalformedObservation
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.measured_goals import measured_goals, measured_places
from ttm_policy.contract.robot_contract import (
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    VectorSource,
)
from ttm_policy.rotations import rotation_between

Observation = Mapping[str, npt.NDArray[Any]]
Numbers = npt.NDArray[np.float64]


class MeasuredMotion:
    """Computes the measured parts of an action."""

    def __init__(self, contract: RobotContract, spec: PolicySpec) -> None:
        self._contract, self._spec = contract, spec
        self._sinks = [sink for sink in contract.actions if sink.measured]

    @property
    def is_needed(self) -> bool:
        """Whether any part of the action is measured."""
        return bool(self._sinks)

    def action(
        self, commanded: npt.NDArray[np.float32], before: Observation, after: Observation
    ) -> npt.NDArray[np.float32]:
        """Return an action (A,) with its measured parts in place of those that were commanded.

        before, after: the observations of its tick and of the next one. Raises `MalformedObservation`
        for an orientation that is none.
        """
        values, goals = commanded.copy(), measured_goals(self._contract, self._spec, after)
        for sink in self._sinks:
            where = self._spec.action_slices[sink.name]
            if sink.type in MOTION_TYPES:
                values[where] = self._moved(sink, before, after)
            else:
                values[where] = goals[where]
        return values

    def _moved(self, sink: ActionSink, before: Observation, after: Observation) -> list[float]:
        tick_s = self._spec.control_dt_s
        source = next(each for each in self._contract.vectors if each.name == sink.measured)
        return [
            _velocity(source, field.path, before, after, tick_s)
            * (tick_s if sink.per_second else 1.0)
            / field.scale
            for field in sink.fields
        ]


def _velocity(
    source: VectorSource, path: str, before: Observation, after: Observation, tick_s: float
) -> float:
    """Return the measured velocity for a command's field, in the unit of the message."""
    kind, axis = path.split(".")[-2:]
    places = measured_places(source, path)
    was, now = (_numbers(source, places, seen) for seen in (before, after))
    if source.fields[places[0]].path.endswith(f"{kind}.{axis}"):
        return float(now[0])
    if len(places) == 1:
        return float(now[0] - was[0]) / tick_s
    rotation = rotation_between(_unit(was, source), _unit(now, source))
    return float(rotation["xyz".index(axis)]) / tick_s


def _numbers(source: VectorSource, places: tuple[int, ...], seen: Observation) -> Numbers:
    """Return what the message had at some places of an observation."""
    return np.array([float(seen[source.name][i]) / source.fields[i].scale for i in places])


def _unit(quaternion: Numbers, source: VectorSource) -> Numbers:
    length = float(np.linalg.norm(quaternion))
    if not 0.5 < length < 2.0:
        raise MalformedObservation(
            f"'{source.name}' ({source.topic}) has the orientation {quaternion.tolist()}, which is no "
            "rotation; check its driver"
        )
    return quaternion / length
