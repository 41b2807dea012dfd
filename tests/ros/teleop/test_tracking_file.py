"""The section of a hand in the file of controls: what is printed can be read, and mistakes are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.teleop.source import TeleopContext
from ttm_policy.teleop.tracking import TrackingMap, default_pose, print_tracking, read_tracking


def test_what_is_printed_is_read_as_it_is(context: TeleopContext, tmp_path: Path) -> None:
    default = default_pose(context)
    assert (default.translation, default.rotation) == ("arm_translation", "arm_rotation")
    assert {drive.part for drive in default.controls.drives} == {"gripper", "base", "terminate"}
    file = tmp_path / "controls.yaml"
    changed = replace(
        default, scale=0.5, turn_scale=2.0, axes=("-z", "-x", "y"), clutch="hand/clutch"
    )
    for hand in (default, changed):
        file.write_text(print_tracking(hand, "pose"))
        assert (
            read_tracking(str(file), "pose", TrackingMap("t", "c", default.controls), SPEC) == hand
        )
    leader = TrackingMap("leader", "button 1", default.controls, joints={"elbow": "leader_elbow"})
    file.write_text(print_tracking(leader, "leader"))
    assert read_tracking(str(file), "leader", replace(leader, joints={}), SPEC) == leader
    assert read_tracking(str(file), "pose", default, SPEC) == default
    without = replace(leader, controls=replace(default.controls, drives=()))
    file.write_text(print_tracking(without, "leader"))
    assert read_tracking(str(file), "leader", leader, SPEC) == without
    np.testing.assert_array_equal(changed.matrix @ [1, 2, 3], [-3, -1, 2])


def test_what_is_not_named_follows_from_the_contract(
    context: TeleopContext, tmp_path: Path
) -> None:
    default = default_pose(context)
    file = tmp_path / "controls.yaml"
    file.write_text("pose: {scale: 0.5, dead_zone: 0.2}")
    hand = read_tracking(str(file), "pose", default, SPEC)
    assert hand == replace(default, scale=0.5, controls=replace(default.controls, dead_zone=0.2))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pose: {speed: 1}", "has unknown speed; it takes"),
        ("pose: {joints: {a: b}}", "has unknown joints"),
        ("leader: {axes: [x, y, z]}", "has unknown axes"),
        ("pose: {scale: 0}", "pose has scale 0; give a number above 0"),
        ("pose: {turn_scale: fast}", "turn_scale 'fast'; give a number"),
        ("pose: {clutch: 4}", "clutch 4; give a button such as button 4, or a topic"),
        ("pose: {clutch: axis 4}", "clutch 'axis 4'; give a button"),
        ("pose: {clutch: button4}", "clutch 'button4'; give a button such as button 4, or a topic"),
        ("pose: {clutch: hand-clutch}", "clutch 'hand-clutch'; give a button"),
        ("pose: {axes: [x, y]}", "axes ['x', 'y']; give x, y and z once each"),
        ("pose: {axes: [x, -x, z]}", "give x, y and z once each"),
        ("pose: {translation: legs}", "translation 'legs'; the action has: arm_translation"),
        ("leader: {joints: [elbow]}", "give the leader's joint for each of the robot"),
        ("pose: {drives: [{part: base, value: 0, plus: axis 1}]}", "no dead_man"),
        ("hand: {}", "unknown hand; it takes keyboard, gamepad, pose, leader"),
    ],
)
def test_mistakes_are_told_in_a_line(
    context: TeleopContext, text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "controls.yaml"
    file.write_text(text)
    device = "leader" if text.startswith("leader") else "pose"
    with pytest.raises(UserError) as error:
        read_tracking(str(file), device, default_pose(context), SPEC)  # type: ignore[arg-type]
    assert words in str(error.value)
    assert "\n" not in str(error.value)
