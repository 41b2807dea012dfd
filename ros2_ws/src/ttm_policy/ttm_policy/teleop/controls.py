"""What the keys, buttons and sticks of a device do to the values of the action. It uses no ROS.

A file of controls has a section for each device; where it has none, `default_keyboard` and
`default_gamepad` derive the controls from the contract:

    keyboard:
      gives_back: enter
      drives:
        - {part: base, value: 0, plus: up, minus: down, speed: 0.25}
    gamepad:
      gives_back: button 7
      dead_zone: 0.1
      drives:
        - {part: base, value: 0, plus: axis 1, speed: 0.25, dead_man: button 5}
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import (
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    number,
    read_yaml,
    require_keys,
)
from ttm_policy.parameters import LIMIT_KINDS
from ttm_policy.teleop.source import TeleopContext, Vector

State = Callable[[str], float]
"""Name of a control -> its deflection, -1 to 1 for a stick and 0 or 1 for a key or button."""

LONGEST_STEP_S = 0.1
"""A motion goes on for at most so long at once, however late it is asked for."""


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
    """All controls of a device."""

    drives: tuple[Drive, ...]
    gives_back: str = ""
    """The control that lets a policy drive again."""
    dead_zone: float = 0.0
    """Deflections up to this count as 0."""


class Controls:
    """Makes a wish out of what is pressed and deflected.

    =================  ==========================================================================
    velocity           `speed` while the control is moved, and zero otherwise
    goal of a joint    goes on by `speed` a second while the control is moved, and stays otherwise
    one of two goals   the higher one after `plus`, the lower one after `minus`, and stays
    `std_msgs/Bool`    true while `plus` is pressed
    =================  ==========================================================================
    """

    def __init__(self, controls: ControlMap, context: TeleopContext) -> None:
        self.map, self._context = controls, context
        self.factor = 1.0
        """All speeds are multiplied by this."""
        self._read_s = -math.inf
        self._types = {sink.name: sink.type for sink in context.contract.actions}
        self.still = context.still

    def wish(self, state: State, now_s: float) -> Vector | None:
        """Return the action (A,) that the controls ask for, NaN for goals that stay.

        None if nobody touches them: no dead-man button is held, and without one nothing is deflected.
        """
        step_s, self._read_s = min(now_s - self._read_s, LONGEST_STEP_S), now_s
        values, touched = self.still.copy(), False
        for drive in self.map.drives:
            held = not drive.dead_man or state(drive.dead_man) > 0.5
            deflection = self._deflection(drive, state) if held else 0.0
            touched |= bool(deflection) or (held and bool(drive.dead_man))
            if deflection:
                place = self._context.spec.action_slices[drive.part].start + drive.value
                values[place] = self._value(drive, place, deflection, step_s)
        return values if touched else None

    def _deflection(self, drive: Drive, state: State) -> float:
        plus, minus = (state(name) if name else 0.0 for name in (drive.plus, drive.minus))
        size, dead = abs(plus - minus), self.map.dead_zone
        if size <= dead:
            return 0.0
        return math.copysign(min((size - dead) / (1 - dead), 1.0), plus - minus)

    def _value(self, drive: Drive, place: int, deflection: float, step_s: float) -> float:
        spec, speed = self._context.spec, deflection * drive.speed * self.factor
        if self._types[drive.part] in MOTION_TYPES:
            return speed
        if spec.binary_mask[place]:
            low, high = spec.action_limits
            return float(high[place] if deflection > 0 else low[place])
        return float(self._context.goals[place] + speed * step_s)


NAMED_KEYS = ("up", "down", "left", "right", "enter", "tab", "backspace")
RESERVED_KEYS = (" ", "f", "d", "u", "q", "?", "+", "-")
"""What the recorder takes, and what changes the speed."""


def is_joy(text: str) -> bool:
    """Return whether a text names an axis, a button or a trigger of a `sensor_msgs/Joy`."""
    return re.fullmatch(r"(axis|button|trigger) \d{1,3}", text) is not None


_NAMES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "keyboard": (
        lambda text: text in NAMED_KEYS or (len(text) == 1 and text not in RESERVED_KEYS),
        f"one character but {' '.join(RESERVED_KEYS)}, or {', '.join(NAMED_KEYS)}",
    ),
    "gamepad": (is_joy, "axis, button or trigger with its number, such as axis 1"),
}
"""Device -> whether a text names one of its controls, and such names in words."""
DEVICES = (*_NAMES, "pose", "leader")
"""The sections that a file may have; the last two are read by `ttm_policy.teleop.tracking`."""


def read_controls(path: str, device: str, spec: PolicySpec) -> ControlMap | None:
    """Return the controls of `keyboard` or `gamepad`; None if no file has any. Raises `UserError`."""
    found = section_of(path, device)
    return None if found is None else controls_of(found[0], device, spec, found[1])


def section_of(path: str, device: str) -> tuple[Any, str] | None:
    """Return the section of a device and what errors call it; None without one. Raises `UserError`."""
    if not path:
        return None
    file = Path(path)
    data = read_yaml(file, "list of controls", "the name of a device")
    if unknown := sorted(str(key) for key in data.keys() - set(DEVICES)):
        names = ", ".join(unknown)
        raise UserError(f"{file.name} has unknown {names}; it takes {', '.join(DEVICES)}")
    return (data[device], f"{file.name}: {device}") if device in data else None


def controls_of(
    entry: Any, device: str, spec: PolicySpec, where: str, default: ControlMap | None = None
) -> ControlMap:
    """Return the controls of a section. default: what is not named; without it, drives must be."""
    known = default or ControlMap(())
    needed = set() if default else {"drives"}
    require_keys(entry, needed, {"drives", "gives_back", "dead_zone"}, where)
    dead_zone = number(entry.get("dead_zone", known.dead_zone), f"{where} has dead_zone")
    if not 0 <= dead_zone < 1:
        raise UserError(f"{where} has dead_zone {dead_zone:g}; give 0 to below 1")
    back = _control(entry.get("gives_back", known.gives_back), device, f"{where}, gives_back,")
    if "drives" not in entry:
        return ControlMap(known.drives, back, dead_zone)
    given = entry["drives"]
    if not isinstance(given, list) or not (given or default):
        raise UserError(f"{where} has no list of drives; give part, value, plus and speed of each")
    drives = [_drive(each, device, spec, f"{where}, drive {n},") for n, each in enumerate(given)]
    return ControlMap(tuple(drives), back, dead_zone)


def _drive(entry: Any, device: str, spec: PolicySpec, where: str) -> Drive:
    require_keys(entry, {"part", "value", "plus"}, {"minus", "speed", "dead_man"}, where)
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
    if device == "keyboard" and dead_man:
        raise UserError(f"{where} has dead_man {dead_man}; leave it out: terminals repeat one key")
    if device == "gamepad" and not dead_man.startswith(("button", "trigger")):
        given = f"dead_man {dead_man}" if dead_man else "no dead_man"
        raise UserError(f"{where} has {given}; name the button or trigger that must be held")
    return Drive(part, value, plus, minus, speed, dead_man)


def _control(name: Any, device: str, where: str) -> str:
    """Return the name of a control; YAML reads the keys of digits as numbers."""
    is_known, words = _NAMES[device]
    text = str(name) if type(name) in (str, int) else "?"
    if text and not is_known(text):
        raise UserError(f"{where} names {name!r}; give {words}")
    return text


def print_controls(controls: ControlMap, device: str, **others: Any) -> str:
    """Return the section of a device as a file has it. others: further keys of the section."""
    drives = [{k: v for k, v in asdict(drive).items() if v != ""} for drive in controls.drives]
    section = {**others, "gives_back": controls.gives_back, "dead_zone": controls.dead_zone}
    given = {key: value for key, value in section.items() if value} | {"drives": drives}
    return yaml.safe_dump({device: given}, sort_keys=False, default_flow_style=None, width=200)


BASE_KEYS = {"max_forward_m_s": ("up", "down"), "max_yaw_rad_s": ("left", "right")}
"""Limit of a base -> the keys of its forward speed, or of its turning."""
KEYS = ("ik", "jl", "yh", "ws", "ae", "rt", "go", "xz", "cv", "bn", "12", "34", "56", "78")
"""Pairs of neighbours, without the keys that the recorder takes."""
STICKS = ("axis 1", "axis 0", "axis 4", "axis 3", "axis 7", "axis 6")
"""Left stick, right stick and cross of most gamepads; forward and left are positive."""
DEAD_MEN = ("button 4", "button 5", "trigger 2", "trigger 5")
"""The shoulder buttons and the triggers, of which each has the sticks drive another topic."""
BUTTONS = (("button 1", "button 0"), ("button 3", "button 2"))

SHARE = 0.5
"""Speeds are this share of their limits."""
RANGE_S = 2.0
"""A joint with a range and no limit of its speed takes so long from one end to the other."""


def default_keyboard(context: TeleopContext) -> ControlMap:
    """Return keys for all values of the action."""
    keys, drives = iter(KEYS), []
    for sink, value in _values(context):
        along = sink.fields[value].path.endswith(("linear.x", "angular.z"))
        base = BASE_KEYS.get(_limit(sink, value)) if along else None
        if pair := base or next(keys, None):
            drives.append(Drive(sink.name, value, pair[0], pair[1], _speed(context, sink, value)))
    return ControlMap(tuple(drives), gives_back="enter")


def default_gamepad(context: TeleopContext) -> ControlMap:
    """Return sticks for velocities and joints, and buttons for what has two states.

    Each topic has a dead-man button of its own; one with more values than sticks has several.
    """
    dead_men, buttons, drives = iter(DEAD_MEN), iter(BUTTONS), []
    layers: Mapping[tuple[str, int], str] = defaultdict(lambda: next(dead_men, ""))
    places: Mapping[str, Iterator[int]] = defaultdict(count)
    for sink, value in _values(context):
        speed = _speed(context, sink, value)
        if context.spec.binary_mask[context.spec.action_slices[sink.name].start + value]:
            if pair := next(buttons, None):
                drives.append(Drive(sink.name, value, *pair, speed, DEAD_MEN[0]))
            continue
        layer, stick = divmod(next(places[sink.topic]), len(STICKS))
        if dead_man := layers[sink.topic, layer]:
            drives.append(Drive(sink.name, value, STICKS[stick], "", speed, dead_man))
    return ControlMap(tuple(drives), gives_back="button 7", dead_zone=0.1)


def _values(context: TeleopContext) -> Iterator[tuple[ActionSink, int]]:
    """Yield the part and the place of each value: first what moves, then joints, then signals."""
    order = (*MOTION_TYPES, *JOINT_TYPES)
    rank = {kind: place for place, kind in enumerate(order)}
    for sink in sorted(context.contract.actions, key=lambda s: rank.get(s.type, len(order))):
        where = context.spec.action_slices[sink.name]
        for value in range(where.stop - where.start):
            yield sink, value


def _limit(sink: ActionSink, value: int) -> str:
    """Return the name of the limit of one value, or an empty text."""
    return sink.limits[value if len(sink.limits) > 1 else 0] if sink.limits else ""


def _speed(context: TeleopContext, sink: ActionSink, value: int) -> float:
    """Return a speed at full deflection, as `Drive` has it, with three digits."""
    most = most_speed(context, sink, value)
    return float(f"{SHARE * most if math.isfinite(most) else 1.0:.3g}")


def most_speed(context: TeleopContext, sink: ActionSink, value: int) -> float:
    """Return the largest speed that spec and limits allow, in the units of `Drive`; inf for any."""
    spec, field, most = context.spec, sink.fields[value], []
    if sink.type in MOTION_TYPES:
        most.append(float(spec.action_limits[1][spec.action_slices[sink.name].start + value]))
    if limit := _limit(sink, value):
        kind, tick_s = LIMIT_KINDS[limit], spec.control_dt_s
        seconds = (tick_s if sink.per_second else 1.0) / (tick_s if kind.per_tick else 1.0)
        most.append(context.limits[kind.speed] * seconds / abs(field.scale))
    elif sink.type in JOINT_TYPES:
        most.append((field.maximum - field.minimum) / abs(field.scale) / RANGE_S / SHARE)
    return min(filter(math.isfinite, most), default=math.inf)
