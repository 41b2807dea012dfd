"""What the keys, buttons and sticks of a device do to the values of the action. It uses no ROS.

=====================  ==========================================================================
velocity               `speed` while the control is moved, and zero otherwise
goal of a joint        goes on by `speed` a second while the control is moved, and stays otherwise
one of two goals       the higher one after `plus`, the lower one after `minus`, and stays
`std_msgs/Bool`        true while `plus` is pressed
=====================  ==========================================================================
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    Field,
    RobotContract,
    number,
    read_yaml,
    require_keys,
)
from ttm_policy.parameters import LIMIT_KINDS

Vector = npt.NDArray[np.float32]
State = Callable[[str], float]
"""Name of a control -> its deflection, -1 to 1 for a stick and 0 or 1 for a key or button."""

LONGEST_STEP_S = 0.1
"""A goal goes on for at most so long at once, however late it is asked for."""


class Goals:
    """Where joints and gripper are, or were sent last: `values`, (A,) in the spec's units, NaN if unknown."""

    def __init__(self, action_size: int) -> None:
        self.values: Vector = np.full(action_size, np.nan, np.float32)


@dataclass(frozen=True)
class Drive:
    """The controls of one value of the action.

    A stick is `plus` alone, since it goes both ways; a pair of keys or buttons is `plus` and `minus`.
    """

    part: str
    value: int
    plus: str
    minus: str = ""
    speed: float = 1.0
    """At full deflection: of a velocity in the spec's units, of a goal in these per second."""
    dead_man: str = ""
    """The button that must be held meanwhile; empty for none."""


@dataclass(frozen=True)
class ControlMap:
    """All controls of a device.

    `gives_back` is the control that lets a policy drive again. Deflections up to `dead_zone` count as 0.
    """

    drives: tuple[Drive, ...]
    gives_back: str = ""
    dead_zone: float = 0.0


class Controls:
    """Makes a wish out of what is pressed and deflected."""

    def __init__(
        self, controls: ControlMap, contract: RobotContract, spec: PolicySpec, goals: Goals
    ) -> None:
        """goals: where joints and gripper are, from which their controls move them on."""
        self.map = controls
        self.factor = 1.0
        """All speeds are multiplied by this."""
        self._goals, self._read_s = goals, -float("inf")
        self._low, self._high = spec.action_limits
        self._binary = spec.binary_mask
        self._places = [spec.action_slices[d.part].start + d.value for d in controls.drives]
        self.still: Vector = np.zeros(spec.action_size, np.float32)
        """The wish (A,) to stand still: zeros, and NaN for goals that stay."""
        for sink in contract.actions:
            if sink.type in JOINT_TYPES:
                self.still[spec.action_slices[sink.name]] = np.nan
        self._types = {sink.name: sink.type for sink in contract.actions}

    def wish(self, state: State, now_s: float) -> Vector | None:
        """Return the action (A,) that the controls ask for, NaN for goals that stay.

        None if nobody touches them: no dead-man button is held, and without one nothing is deflected.
        """
        step_s = min(now_s - self._read_s, LONGEST_STEP_S)
        self._read_s = now_s
        values, touched = self.still.copy(), False
        for drive, place in zip(self.map.drives, self._places, strict=True):
            held = not drive.dead_man or state(drive.dead_man) > 0.5
            deflection = self._deflection(drive, state) if held else 0.0
            touched |= bool(deflection) or (held and bool(drive.dead_man))
            if deflection:
                values[place] = self._value(drive, place, deflection, step_s)
        return values if touched else None

    def _deflection(self, drive: Drive, state: State) -> float:
        plus, minus = (state(name) if name else 0.0 for name in (drive.plus, drive.minus))
        deflection = plus - minus
        dead = self.map.dead_zone
        if abs(deflection) <= dead:
            return 0.0
        return float(np.copysign(min((abs(deflection) - dead) / (1 - dead), 1.0), deflection))

    def _value(self, drive: Drive, place: int, deflection: float, step_s: float) -> float:
        speed, kind = deflection * drive.speed * self.factor, self._types[drive.part]
        if kind in MOTION_TYPES:
            return speed
        if self._binary[place]:
            return float(self._high[place] if deflection > 0 else self._low[place])
        return float(self._goals.values[place] + speed * step_s)


# Reads the controls of a device from a YAML file, and prints them as such.
#
# keyboard:
#   gives_back: enter
#   drives:
#     - {part: base, value: 0, plus: up, minus: down, speed: 0.25}
# gamepad:
#   gives_back: button 7
#   dead_zone: 0.1
#   drives:
#     - {part: base, value: 0, plus: axis 1, speed: 0.25, dead_man: button 5}

NAMED_KEYS = ("up", "down", "left", "right", "enter", "tab", "backspace")
RESERVED_KEYS = (" ", "f", "d", "u", "q", "?", "+", "-")
"""What the recorder takes, and what changes the speed."""
_SECTION = {"drives", "gives_back", "dead_zone"}
_NEEDED, _OPTIONAL = {"part", "value", "plus"}, {"minus", "speed", "dead_man"}


def read_controls(path: str, device: str, spec: PolicySpec) -> ControlMap | None:
    """Return the controls of a device, `keyboard` or `gamepad`; None if the file has none for it.

    Raises `UserError` that names the faulty entry.
    """
    found = section_of(path, device)
    return None if found is None else controls_of(found[0], device, spec, found[1])


def section_of(path: str, device: str) -> tuple[Any, str] | None:
    """Return the section of a device and what errors call it; None if the file has none.

    Raises `UserError` for a file that is no list of controls, and for a section of an unknown device.
    """
    file = Path(path).name
    data = read_yaml(Path(path), "list of controls", "the name of a device")
    if unknown := sorted(str(key) for key in data.keys() - set(DEVICES)):
        raise UserError(f"{file} has unknown {', '.join(unknown)}; it takes {', '.join(DEVICES)}")
    return (data[device], f"{file}: {device}") if device in data else None


def print_controls(controls: ControlMap, device: str, spec: PolicySpec) -> str:
    """Return the controls as a file has them, with the unit of each value."""
    units = {part.name: part.unit for part in spec.actions}
    lines = [f"{device}:", f"  gives_back: {_quoted(controls.gives_back)}"]
    lines += [f"  dead_zone: {controls.dead_zone:g}"] if controls.dead_zone else []
    lines += ["  drives:" if controls.drives else "  drives: []"]
    for drive in controls.drives:
        named = {"plus": drive.plus, "minus": drive.minus, "dead_man": drive.dead_man}
        given = [f"{key}: {_quoted(name)}" for key, name in named.items() if name]
        start = f"part: {drive.part}, value: {drive.value}, {', '.join(given)}"
        lines.append(f"    - {{{start}, speed: {drive.speed:g}}}  # {units[drive.part]}")
    return "\n".join(lines)


def controls_of(
    entry: Any, device: str, spec: PolicySpec, where: str, default: ControlMap | None = None
) -> ControlMap:
    """Return the controls of a section.

    device: `keyboard` or `gamepad`, whose names it takes. default: what is not named; without it, drives
    must be.
    """
    known = default or ControlMap(())
    require_keys(entry, set() if default else {"drives"}, _SECTION, where)
    dead_zone = number(entry.get("dead_zone", known.dead_zone), f"{where} has dead_zone")
    if not 0 <= dead_zone < 1:
        raise UserError(f"{where} has dead_zone {dead_zone:g}; give 0 to below 1")
    gives_back = _control(
        entry.get("gives_back", known.gives_back), device, f"{where}, gives_back,"
    )
    if "drives" not in entry:
        return ControlMap(known.drives, gives_back, dead_zone)
    if not isinstance(entry["drives"], list) or not (entry["drives"] or default):
        raise UserError(f"{where} has no list of drives; give part, value, plus and speed of each")
    drives = tuple(
        _drive(drive, device, spec, f"{where}, drive {place},")
        for place, drive in enumerate(entry["drives"])
    )
    return ControlMap(drives, gives_back, dead_zone)


def _drive(entry: Any, device: str, spec: PolicySpec, where: str) -> Drive:
    require_keys(entry, _NEEDED, _OPTIONAL, where)
    sizes = {part.name: part.size for part in spec.actions}
    part, value = entry["part"], entry["value"]
    if not isinstance(part, str) or part not in sizes:
        raise UserError(f"{where} drives part {part!r}; the action has: {', '.join(sizes)}")
    if type(value) is not int or not 0 <= value < sizes[part]:
        raise UserError(f"{where} drives value {value!r} of '{part}'; give 0 to {sizes[part] - 1}")
    speed = number(entry.get("speed", 1.0), f"{where} has speed")
    if not math.isfinite(speed) or not speed:
        raise UserError(f"{where} has speed {speed:g}; give a number that is not 0")
    plus, minus, dead_man = (
        _control(entry.get(key, ""), device, f"{where} in {key},")
        for key in ("plus", "minus", "dead_man")
    )
    if not plus:
        raise UserError(f"{where} has an empty plus; name the control that moves the value")
    _check_dead_man(dead_man, device, where)
    return Drive(part, value, plus, minus, speed, dead_man)


def _check_dead_man(name: str, device: str, where: str) -> None:
    if device == "keyboard" and name:
        raise UserError(
            f"{where} has dead_man {name}; leave it out, since a terminal repeats only the newest key"
        )
    if device == "gamepad" and not name.startswith(("button", "trigger")):
        given = f"dead_man {name}" if name else "no dead_man"
        raise UserError(f"{where} has {given}; name the button or trigger that must be held")


def _control(name: Any, device: str, where: str) -> str:
    """Return the name of a control; YAML reads the keys of digits as numbers."""
    text = str(name) if type(name) in (str, int) else "?"
    if text and not _RULES[device](text):
        wanted = {
            "keyboard": f"one character but {' '.join(RESERVED_KEYS)}, or {', '.join(NAMED_KEYS)}",
            "gamepad": "axis, button or trigger with its number, such as axis 1",
        }
        raise UserError(f"{where} names {name!r}; give {wanted[device]}")
    return text


def _is_key(text: str) -> bool:
    return text in NAMED_KEYS or (len(text) == 1 and text not in RESERVED_KEYS)


def is_joy(text: str) -> bool:
    """Return whether a text names an axis, a button or a trigger of a `sensor_msgs/Joy`."""
    return re.fullmatch(r"(axis|button|trigger) \d{1,3}", text) is not None


_RULES: Mapping[str, Callable[[str], bool]] = {"keyboard": _is_key, "gamepad": is_joy}
"""Device -> whether a text names one of its controls."""
DEVICES = (*_RULES, "pose", "leader")
"""The sections that a file may have; those of hands are read by `ttm_policy.teleop.hands`."""


def _quoted(name: str) -> str:
    """Return a name as YAML takes it for a text, such as the key y, which is a boolean otherwise."""
    return name if len(name) > 1 else json.dumps(name)


# The controls of a device where no file names any: they follow from the contract's action parts.

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
