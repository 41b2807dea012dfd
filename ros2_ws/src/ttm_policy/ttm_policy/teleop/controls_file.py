"""Reads the controls of a device from a YAML file, and prints them as such.

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

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.entry_rules import number, require_keys
from ttm_policy.contract.yaml_file import read_yaml
from ttm_policy.teleop.controls import ControlMap, Drive

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
"""The sections that a file may have; those of hands are read by `ttm_policy.teleop.hands.hand_map`."""


def _quoted(name: str) -> str:
    """Return a name as YAML takes it for a text, such as the key y, which is a boolean otherwise."""
    return name if len(name) > 1 else json.dumps(name)
