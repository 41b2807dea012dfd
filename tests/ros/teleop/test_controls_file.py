"""Controls in YAML: what is printed can be read, and mistakes are told."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sensor_msgs.msg import Joy

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.teleop.controls import (
    DEAD_MEN,
    KEYS,
    RESERVED_KEYS,
    ControlMap,
    Controls,
    Drive,
    default_gamepad,
    default_keyboard,
    print_controls,
    read_controls,
)
from ttm_policy.teleop.devices import JoyState
from ttm_policy.teleop.source import TeleopContext


@pytest.mark.parametrize(
    ("device", "default"), [("keyboard", default_keyboard), ("gamepad", default_gamepad)]
)
def test_defaults_drive_everything_and_are_read_as_they_are_printed(
    context: TeleopContext, device: str, default: object, tmp_path: Path
) -> None:
    controls = default(context)  # type: ignore[operator]
    driven = Counter((drive.part, drive.value) for drive in controls.drives)
    assert driven == Counter((part.name, i) for part in SPEC.actions for i in range(part.size))
    file = tmp_path / "controls.yaml"
    file.write_text(print_controls(controls, device))
    assert read_controls(str(file), device, SPEC) == controls
    other = "gamepad" if device == "keyboard" else "keyboard"
    assert read_controls(str(file), other, SPEC) is None


def test_every_key_is_read_as_it_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "controls.yaml"
    drives = [Drive("base", 0, plus) for plus in ('"', "\\", "'", "y", "1", "#", "up")]
    controls = ControlMap(tuple(drives), gives_back="enter")
    file.write_text(print_controls(controls, "keyboard"))
    assert read_controls(str(file), "keyboard", SPEC) == controls


def test_speeds_are_half_of_the_strictest_limit(context: TeleopContext) -> None:
    keys = default_keyboard(context).drives
    speeds = {(drive.part, drive.value): drive.speed for drive in keys}
    assert speeds["arm_translation", 0] == 0.025  # the spec's limit is below max_translation_m
    assert (speeds["base", 0], speeds["base", 1]) == (0.25, 0.4)
    free = replace(SPEC, actions=tuple(replace(p, low=-9.0, high=9.0) for p in SPEC.actions))
    keys = default_keyboard(replace(context, spec=free)).drives
    assert keys[0].speed == 0.05


def test_default_keys_leave_those_of_the_recorder() -> None:
    used = [key for pair in KEYS for key in pair]
    assert len(set(used)) == len(used)
    assert not set(used) & set(RESERVED_KEYS)


def test_each_topic_of_the_default_gamepad_has_a_dead_man_button(context: TeleopContext) -> None:
    drives = default_gamepad(context).drives
    sticks = [(drive.plus, drive.dead_man) for drive in drives if "axis" in drive.plus]
    assert len(set(sticks)) == len(sticks) == 8
    assert drives[0] == Drive("arm_translation", 0, "axis 1", "", 0.025, "button 4")
    assert Drive("base", 0, "axis 1", "", 0.25, "button 5") in drives


def test_no_topic_of_the_default_gamepad_is_driven_while_all_is_released(
    context: TeleopContext,
) -> None:
    """Each velocity on a topic of its own uses all dead-man buttons, also the triggers."""
    base, arm = context.contract.actions[-2], context.contract.actions[0]
    topics = [replace(arm, topic=f"arm_{place}") for place in range(3)]
    context = replace(context, contract=replace(context.contract, actions=(base, *topics)))
    drives = default_gamepad(context).drives
    assert {drive.dead_man for drive in drives} == set(DEAD_MEN)
    state = JoyState()
    state.take(Joy(axes=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0], buttons=[0] * 8), 0.0)
    controls = Controls(ControlMap(drives, dead_zone=0.1), context)
    assert controls.wish(state, 0.0) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mouse: {drives: []}", "unknown mouse; it takes keyboard, gamepad, pose, leader"),
        ("keyboard: {drives: []}", "no list of drives"),
        ("keyboard: {drives: [{part: arm, value: 0, plus: w}]}", "part 'arm'; the action has: arm_"),
        ("keyboard: {drives: [{part: base, value: 2, plus: w}]}", "value 2 of 'base'; give 0 to 1"),
        ("keyboard: {drives: [{part: base, value: 0, plus: q}]}", "names 'q'; give one character but"),
        ("keyboard: {drives: [{part: base, value: 0, plus: w, speed: 0}]}", "speed 0; give a number"),
        ("keyboard: {drives: [{part: base, value: 0}]}", "lacks plus"),
        ("gamepad: {drives: [{part: base, value: 0, plus: axis 1}]}", "no dead_man; name the button or"),
        ("gamepad: {drives: [{part: base, value: 0, plus: axis 1, dead_man: axis 2}]}", "dead_man axis 2;"),
        ("gamepad: {drives: [{part: base, value: 0, plus: stick}]}", "names 'stick'; give axis, b"),
        ("gamepad: {dead_zone: 1, drives: [1]}", "dead_zone 1; give 0 to below 1"),
        ("keyboard: {drives: [{part: [base], value: 0, plus: w}]}", "part ['base']; the action"),
        ("keyboard: {drives: [{part: base, value: 0, plus: ''}]}", "an empty plus; name the"),
        ("keyboard: {drives: [{part: base, value: 0, plus: w, dead_man: x}]}", "dead_man x; leave it"),
        ("[]", "holds no list of controls"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "controls.yaml"
    file.write_text(text)
    device = "gamepad" if text.startswith("gamepad") else "keyboard"
    with pytest.raises(UserError, match=re.escape(words)) as error:
        read_controls(str(file), device, SPEC)
    assert "\n" not in str(error.value)
