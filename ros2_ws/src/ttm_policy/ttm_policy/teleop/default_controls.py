"""The controls of a device where no file names any: they follow from the contract's action parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count

from ttm.policy.spec import PolicySpec
from ttm_policy.contract.robot_contract import (
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    Field,
    RobotContract,
)
from ttm_policy.parameter_sets.limit_parameters import LIMIT_KINDS
from ttm_policy.teleop.controls import ControlMap, Drive

Pair = tuple[str, str]

BASE_KEYS: Mapping[str, Pair] = {"linear": ("up", "down"), "angular": ("left", "right")}
KEYS: tuple[Pair, ...] = tuple(
    (pair[0], pair[1])
    for pair in ("ik", "jl", "yh", "ws", "ae", "rt", "go", "xz", "cv", "bn", "12", "34", "56", "78")
)
"""Pairs of neighbours, without the keys that the recorder takes."""
STICKS = ("axis 1", "axis 0", "axis 4", "axis 3", "axis 7", "axis 6")
"""Left stick, right stick and cross of most gamepads; forward and left are positive."""
DEAD_MEN = ("button 4", "button 5", "trigger 2", "trigger 5")
"""The shoulder buttons and the triggers, of which each has the sticks drive another topic."""
BUTTONS: tuple[Pair, ...] = (("button 1", "button 0"), ("button 3", "button 2"))

SHARE = 0.5
"""Speeds are this share of their limits."""
RANGE_S = 2.0
"""A joint with a range and no limit of its speed takes so long from one end to the other."""


def default_keyboard(
    contract: RobotContract, spec: PolicySpec, limits: Mapping[str, float]
) -> ControlMap:
    """Return keys for all values of the action. limits: the values of all limit parameters."""
    keys = iter(KEYS)
    drives = []
    for sink, value, field in _values(contract, spec):
        base = _base_direction(sink, value, field)
        pair = BASE_KEYS[base] if base else next(keys, None)
        if pair is not None:
            drives.append(Drive(sink.name, value, *pair, _speed(sink, value, field, spec, limits)))
    return ControlMap(tuple(drives), gives_back="enter")


def default_gamepad(
    contract: RobotContract, spec: PolicySpec, limits: Mapping[str, float]
) -> ControlMap:
    """Return sticks for the velocities and joints, and buttons for what has two states.

    Each topic has a dead-man button of its own; one with more values than sticks has several.
    """
    layers: dict[tuple[str, int], str] = {}
    dead_men, buttons = iter(DEAD_MEN), iter(BUTTONS)
    places: dict[str, Iterator[int]] = {}
    drives = []
    for sink, value, field in _values(contract, spec):
        speed = _speed(sink, value, field, spec, limits)
        two_states = spec.binary_mask[spec.action_slices[sink.name].start + value]
        if two_states:
            pair = next(buttons, None)
            if pair is not None:
                drives.append(Drive(sink.name, value, *pair, speed, DEAD_MEN[0]))
            continue
        layer, stick = divmod(next(places.setdefault(sink.topic, count())), len(STICKS))
        if (sink.topic, layer) not in layers:
            layers[sink.topic, layer] = next(dead_men, "")
        if held := layers[sink.topic, layer]:
            drives.append(Drive(sink.name, value, STICKS[stick], "", speed, held))
    return ControlMap(tuple(drives), gives_back="button 7", dead_zone=0.1)


def _values(contract: RobotContract, spec: PolicySpec) -> Iterator[tuple[ActionSink, int, Field]]:
    """Yield each value of the action with its field: first what moves, then joints, then signals."""
    order = (*MOTION_TYPES, *JOINT_TYPES)
    sinks = sorted(
        contract.actions, key=lambda s: order.index(s.type) if s.type in order else len(order)
    )
    for sink in sinks:
        where = spec.action_slices[sink.name]
        for value in range(where.stop - where.start):
            yield sink, value, sink.fields[value]


def _limit(sink: ActionSink, value: int) -> str:
    """Return the name of the limit of one value, or an empty text."""
    return sink.limits[value if len(sink.limits) > 1 else 0] if sink.limits else ""


def _base_direction(sink: ActionSink, value: int, field: Field) -> str:
    """Return `linear` or `angular` for forward speed and turning of a base, else an empty text."""
    is_base = _limit(sink, value) in ("max_forward_m_s", "max_yaw_rad_s")
    along = field.path.endswith(("linear.x", "angular.z"))
    return LIMIT_KINDS[_limit(sink, value)].moves if is_base and along else ""


def _speed(
    sink: ActionSink, value: int, field: Field, spec: PolicySpec, limits: Mapping[str, float]
) -> float:
    """Return a speed at full deflection, as `Drive` has it, with three digits."""
    most = most_speed(sink, value, field, spec, limits)
    return float(f"{SHARE * (most if math.isfinite(most) else 1.0 / SHARE):.3g}")


def most_speed(
    sink: ActionSink, value: int, field: Field, spec: PolicySpec, limits: Mapping[str, float]
) -> float:
    """Return the largest speed that spec and limits allow, in the units of `Drive`; inf for any."""
    place = spec.action_slices[sink.name].start + value
    most = [float(spec.action_limits[1][place])] if sink.type in MOTION_TYPES else []
    if limit := _limit(sink, value):
        kind, tick_s = LIMIT_KINDS[limit], spec.control_dt_s
        seconds = (tick_s if sink.per_second else 1.0) / (tick_s if kind.per_tick else 1.0)
        most.append(limits[kind.speed] * seconds / abs(field.scale))
    elif sink.type in JOINT_TYPES:
        most.append((field.maximum - field.minimum) / abs(field.scale) / RANGE_S / SHARE)
    return min((each for each in most if math.isfinite(each)), default=math.inf)
