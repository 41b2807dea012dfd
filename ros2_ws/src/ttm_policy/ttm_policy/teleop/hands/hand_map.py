"""What the motion of a hand does, as a section of the file of controls says it.

pose:
  topic: hand_pose
  clutch: button 4
  axes: [-z, -x, y]
  scale: 1.0
  turn_scale: 1.0
  translation: arm_translation
  rotation: arm_rotation
  drives: [{part: gripper, value: 0, plus: button 1, minus: button 0, dead_man: button 4}]
leader:
  topic: leader/joint_states
  clutch: button 4
  scale: 1.0
  joints: {elbow: leader_elbow}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.entry_rules import number, require_keys, topic_problem
from ttm_policy.teleop.controls import ControlMap
from ttm_policy.teleop.controls_file import controls_of, is_joy, print_controls, section_of

Hand = Literal["pose", "leader"]
HANDS: tuple[Hand, ...] = get_args(Hand)
"""The devices that have a section with a clutch."""
AXES = ("x", "y", "z")
_COMMON = {"topic", "clutch", "scale", "drives", "gives_back", "dead_zone"}
_KEYS: Mapping[Hand, set[str]] = {
    "pose": {*_COMMON, "axes", "turn_scale", "translation", "rotation"},
    "leader": {*_COMMON, "joints"},
}


@dataclass(frozen=True)
class HandMap:
    """The topic of a hand, its clutch, and what its motion does.

    `clutch` is a button or a trigger of the topic `joy`, such as `button 4`, or the name of a topic of type
    `std_msgs/Bool`. `controls` are the buttons and sticks of the topic `joy` that drive besides.
    """

    topic: str
    clutch: str
    controls: ControlMap
    scale: float = 1.0
    """The robot moves so many times as far as the hand."""
    turn_scale: float = 1.0
    """It turns so many times as far."""
    axes: tuple[str, str, str] = AXES
    """Which axes of the hand's frame are forward, left and up of the robot, such as `-z`."""
    translation: str = ""
    """The part of the action that the hand moves; empty for none."""
    rotation: str = ""
    """The part that it turns; empty for none."""
    joints: Mapping[str, str] = field(default_factory=dict)
    """Joint of the robot -> joint of the leader, or -joint. Joints that are not named have the same name."""

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """(3, 3), from a motion in the hand's frame to that of the robot."""
        found = np.zeros((3, 3))
        for row, axis in enumerate(self.axes):
            found[row, AXES.index(axis[-1])] = -1.0 if axis[0] == "-" else 1.0
        return found


def read_hand(path: str, device: Hand, default: HandMap, spec: PolicySpec) -> HandMap:
    """Return the section of a device; what it does not name is that of `default`.

    Raises `UserError` that names the faulty entry.
    """
    found = section_of(path, device)
    if found is None:
        return default
    entry, where = found
    require_keys(entry, set(), _KEYS[device], where)
    own = {key: value for key, value in entry.items() if key in _READERS}
    given: dict[str, Any] = {key: _READERS[key](value, where) for key, value in own.items()}
    buttons = {key: entry[key] for key in ("drives", "gives_back", "dead_zone") if key in entry}
    given["controls"] = controls_of(buttons, "gamepad", spec, where, default.controls)
    for part in ("translation", "rotation"):
        _require_part(given.get(part, ""), spec, f"{where} has {part}")
    return HandMap(**{**vars(default), **given})


def print_hand(hand: HandMap, device: Hand, spec: PolicySpec) -> str:
    """Return the section as the file has it."""
    lines = [f"{device}:", f"  topic: {hand.topic}", f"  clutch: {hand.clutch}"]
    lines += [f"  scale: {hand.scale:g}"]
    if device == "pose":
        lines += [f"  turn_scale: {hand.turn_scale:g}", f"  axes: [{', '.join(hand.axes)}]"]
        lines += [f"  {key}: {part}" for key, part in _parts(hand).items() if part]
    elif hand.joints:
        lines += [f"  joints: {{{', '.join(f'{a}: {b}' for a, b in hand.joints.items())}}}"]
    return "\n".join(lines + print_controls(hand.controls, device, spec).splitlines()[1:])


def _parts(hand: HandMap) -> dict[str, str]:
    return {"translation": hand.translation, "rotation": hand.rotation}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or value != "".join(value.split()):
        raise UserError(f"{where} names {value!r}; give a name without spaces")
    return value


def _clutch(value: Any, where: str) -> str:
    text = value if isinstance(value, str) else ""
    is_button = is_joy(text) and not text.startswith("axis")
    is_misspelt = re.fullmatch(r"(axis|button|trigger)[\W_]?\d+", text, re.IGNORECASE) is not None
    if is_button or not (is_misspelt or topic_problem(text)):
        return text
    raise UserError(
        f"{where} has clutch {value!r}; give a button such as button 4, or a topic of std_msgs/Bool"
    )


def _above_0(key: str, value: Any, where: str) -> float:
    found = number(value, f"{where} has {key}")
    if not 0 < found < float("inf"):
        raise UserError(f"{where} has {key} {found:g}; give a number above 0")
    return found


def _axes(value: Any, where: str) -> tuple[str, ...]:
    names = [str(axis) for axis in value] if isinstance(value, list) else []
    if sorted(name.removeprefix("-") for name in names) != list(AXES):
        raise UserError(
            f"{where} has axes {value!r}; give x, y and z once each, such as [-z, -x, y]"
        )
    return tuple(names)


def _joints(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and name for pair in value.items() for name in pair
    ):
        raise UserError(
            f"{where} has joints {value!r}; give the leader's joint for each of the robot"
        )
    return value


def _require_part(part: str, spec: PolicySpec, what: str) -> None:
    known = [each.name for each in spec.actions]
    if part and part not in known:
        raise UserError(f"{what} '{part}'; the action has: {', '.join(known)}")


_READERS: Mapping[str, Any] = {
    "topic": _text,
    "clutch": _clutch,
    "scale": partial(_above_0, "scale"),
    "turn_scale": partial(_above_0, "turn_scale"),
    "axes": _axes,
    "translation": _text,
    "rotation": _text,
    "joints": _joints,
}
