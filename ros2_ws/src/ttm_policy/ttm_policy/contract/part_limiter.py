"""Limits one part of the action, in the units of the messages that it is sent as."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec
from ttm_policy.contract.joint_limits import JointLimit
from ttm_policy.contract.motion_filter import MotionBounds, MotionFilter, Numbers
from ttm_policy.contract.robot_contract import (
    JOINT_TYPES,
    RAMP,
    ActionSink,
    Field,
    RobotContract,
    VectorSource,
    Workspace,
)
from ttm_policy.parameter_sets.limit_parameters import LIMIT_KINDS

Vector = npt.NDArray[np.float32]
Observation = Mapping[str, npt.NDArray[np.generic]]

_NO_LIMIT = JointLimit()


class PartLimiter:
    """Bounds the numbers of one action part after `scale` and `per_second`.

    A part that one value drives through several fields is bounded by the strictest of them.
    """

    def __init__(
        self,
        sink: ActionSink,
        contract: RobotContract,
        spec: PolicySpec,
        period_s: float,
        lasts_s: float,
    ):
        """period_s, lasts_s: as for `SafetyLimits`."""
        self.where, self.topic = spec.action_slices[sink.name], sink.topic
        size = self.where.stop - self.where.start
        self._period_s, self._tick_s = period_s, spec.control_dt_s
        self._kinds = [LIMIT_KINDS[name] for name in sink.limits]
        self._is_position = sink.type in JOINT_TYPES
        # One value for several fields has all fields, else each value has one of its own.
        self._fields = [sink.fields] if size == 1 else [(field,) for field in sink.fields]
        self._leading = [max(fields, key=lambda field: abs(field.scale)) for fields in self._fields]
        per_second = self._tick_s if sink.per_second else 1.0
        self._gain = np.array([field.scale for field in self._leading]) / per_second
        each = [slice(i, i + 1) for i in range(size)]
        self._groups = [slice(0, size)] if len(self._kinds) == 1 and not self._is_position else each
        self._filter = MotionFilter(self._groups, self._period_s)
        self._measured = [contract.measurement_of(field.path) for field in self._leading]
        self._last: Numbers | None = None
        box = contract.workspace
        here = box is not None and box.action == sink.name
        self._box = _Box(box, contract, self._leading, lasts_s) if box and here else None
        self._ramp_s = RAMP * self._tick_s if sink.smooth else 0.0

    def halt(self) -> None:
        """Note that the robot stands still, wherever it is now."""
        self._filter.halt()
        self._last = None

    def limit(
        self,
        values: Vector,
        limits: Mapping[str, float],
        joints: Mapping[str, JointLimit],
        observation: Observation | None,
        late_s: float,
        now_s: float | None = None,
    ) -> Vector:
        """Return the values (n,) that may be commanded. Those within the limits keep their bits.

        limits: the values of all limit parameters. joints: the limits of the robot's description.
        late_s, now_s: as for `SafetyLimits.apply`.
        """
        low, high = self._range(joints)
        wanted = np.clip(values.astype(np.float64), low, high)
        if self._kinds:
            start = self._start(observation) if self._is_position else np.zeros(len(wanted))
            scale = self._gain / (self._period_s if self._is_position else 1.0)
            speed = wanted * scale - start / self._period_s
            allowed = self._filter.apply(speed, self._bounds(limits, joints))
            if self._box is not None:
                # While a smooth part changes, its old velocity counts for half of the time.
                ramp_s = self._ramp_s / 2 if late_s else 0.0
                before = self._filter.speed
                way = self._box.way(before, late_s, now_s) + _to_sides(before, ramp_s)
                allowed = self._box.keep_inside(allowed, observation, way)
                self._box.commanded(allowed, now_s)
            self._filter.commanded(allowed)
            moved = (allowed + start / self._period_s) / scale
            wanted = np.where(allowed == speed, wanted, moved)
            low, high = self._reachable(wanted, allowed == speed, low, high)
            self._last = wanted * self._gain
        return _rounded(wanted, values, low, high)

    def _reachable(
        self, moved: Numbers, kept: npt.NDArray[np.bool_], low: Numbers, high: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the bounds for rounding: no speed that was cut may grow."""
        if self._is_position:
            return np.minimum(low, moved), np.maximum(high, moved)
        most = np.where(kept, np.inf, np.abs(moved))
        return np.maximum(low, -most), np.minimum(high, most)

    def _range(self, joints: Mapping[str, JointLimit]) -> tuple[Numbers, Numbers]:
        """Return the lowest and the highest value (n,) that all fields allow."""
        bounds = [
            sorted((low / field.scale, high / field.scale))
            for fields in self._fields
            for field in fields
            for low, high in [_field_range(field, joints if self._is_position else {})]
        ]
        pairs = np.array(bounds).reshape(len(self._fields), -1, 2)  # (values, fields, 2)
        return pairs[:, :, 0].max(axis=1), pairs[:, :, 1].min(axis=1)

    def _bounds(
        self, limits: Mapping[str, float], joints: Mapping[str, JointLimit]
    ) -> list[MotionBounds]:
        """Return the bounds of each group."""
        kinds = self._kinds * len(self._groups) if len(self._kinds) == 1 else self._kinds
        bounds = []
        for kind, group in zip(kinds, self._groups, strict=True):
            speed = limits[kind.speed] / (self._tick_s if kind.per_tick else 1.0)
            if self._is_position:
                fields = self._fields[group.start]
                speed = min(speed, *(joints.get(f.path, _NO_LIMIT).velocity for f in fields))
            bounds.append(MotionBounds(speed, limits[kind.acceleration], limits[kind.jerk]))
        return bounds

    def _start(self, observation: Observation | None) -> Numbers:
        """Return where the joints are (n,): as commanded last, or as measured after standing still."""
        if self._last is None:
            assert observation is not None, "a limit of a joint's speed needs its position"
            self._last = np.array(
                [_read(observation, *source) for source in self._measured if source is not None]
            )
        return self._last


class _Box:
    """Keeps a point within a workspace by its velocity, which may last for `lasts_s`."""

    def __init__(
        self, box: Workspace, contract: RobotContract, fields: list[Field], lasts_s: float
    ):
        self._lasts_s = lasts_s
        axes = ["xyz".index(field.path[-1]) for field in fields]
        self._low, self._high = np.array(box.minimum)[axes], np.array(box.maximum)[axes]
        source = next(vector for vector in contract.vectors if vector.name == box.position)
        paths = [field.path for field in source.fields]
        wanted = [f"pose.position.{'xyz'[axis]}" for axis in axes]
        self._measured = [(source, paths.index(path)) for path in wanted]
        self._sent: deque[tuple[float, Numbers]] = deque()

    def commanded(self, velocity: Numbers, now_s: float | None) -> None:
        """Note the velocity (3,) that is in force from now on. now_s: None if nobody will ask."""
        if now_s is not None:
            self._sent.append((now_s, velocity))

    def way(self, before: Numbers, late_s: float, now_s: float | None) -> Numbers:
        """Return how far the point has gone towards low and high sides since it was observed, (2, 3).

        before: (3,), the velocity that was commanded last, which alone counts without `now_s`.
        """
        if now_s is None:
            return _to_sides(before, late_s)
        seen_s = now_s - late_s
        while self._sent and not seen_s - self._lasts_s <= self._sent[0][0] <= now_s:
            self._sent.popleft()
        ends = [*(begun_s for begun_s, _ in self._sent), now_s][1:]
        way = np.zeros((2, len(before)))
        for (begun_s, velocity), end_s in zip(self._sent, ends, strict=True):
            last_s = min(end_s, begun_s + self._lasts_s)
            way += _to_sides(velocity, max(0.0, last_s - max(begun_s, seen_s)))
        return way

    def keep_inside(
        self, velocity: Numbers, observation: Observation | None, way: Numbers
    ) -> Numbers:
        """Return the velocity (3,) that does not leave the box while it lasts.

        Outside of the box it may only lead back. way: (2, 3), how far the point goes from where it was
        observed before the velocity is in force, towards low and high sides. What leads to one side makes
        no room at the opposite one, since something may hold the point back, or start it late.
        """
        assert observation is not None, "a workspace needs the gripper's position"
        position = np.array([_read(observation, *source) for source in self._measured])
        low, high = self._low - (position + way[0]), self._high - (position + way[1])
        low, high = np.minimum(0.0, low / self._lasts_s), np.maximum(0.0, high / self._lasts_s)
        return np.clip(velocity, low, high)


def _to_sides(velocity: Numbers, duration_s: float) -> Numbers:
    """Return how far a velocity (n,) leads in a time, (2, n): what leads down, and what leads up."""
    return np.stack([np.minimum(velocity, 0.0), np.maximum(velocity, 0.0)]) * duration_s


def _read(observation: Observation, source: VectorSource, index: int) -> float:
    """Return a number of an observation as it was in the message."""
    return float(observation[source.name][index]) / source.fields[index].scale


def _field_range(field: Field, joints: Mapping[str, JointLimit]) -> tuple[float, float]:
    described = joints.get(field.path, _NO_LIMIT)
    return max(field.minimum, described.lower), min(field.maximum, described.upper)


def _rounded(wanted: Numbers, values: Vector, low: Numbers, high: Numbers) -> Vector:
    """Return float32 numbers that rounding does not carry over a bound.

    Where `wanted` is the value itself, its bits stay.
    """
    result = wanted.astype(np.float32)
    result = np.where(result > high, np.nextafter(result, np.float32(-np.inf)), result)
    result = np.where(result < low, np.nextafter(result, np.float32(np.inf)), result)
    return np.where(wanted == values, values, result)
