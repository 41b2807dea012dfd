"""Driving by the page without a server: who has the controls, their layout, and what they command."""

from __future__ import annotations

import numpy as np
import pytest
from teleoperation import kitchen_context

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.teleop.controls import Controls, default_keyboard
from ttm_policy.web.access import DriverLock
from ttm_policy.web.robot import WebSource
from ttm_policy.web.views import page_controls, page_layout


def test_the_lock_is_one_pages_until_it_lets_go_or_falls_silent() -> None:
    lock = DriverLock(timeout_s=0.5)
    assert lock.held(0.0) is None
    lock.take("a", 0.0)
    lock.steer("a", {"base.0": 1.0}, 0.2)
    assert lock.held(0.6) == ({"base.0": 1.0}, 0.2)
    with pytest.raises(UserError, match="somebody else drives"):
        lock.take("b", 0.6)
    lock.release("b")
    assert lock.driver(0.6) == "a"
    assert lock.held(0.71) is None
    with pytest.raises(UserError, match="does not drive"):
        lock.steer("a", {}, 0.72)
    lock.take("b", 0.8)
    lock.release("b")
    assert lock.driver(0.8) is None


@pytest.fixture(scope="module")
def source() -> tuple[DriverLock, WebSource]:
    context, lock = kitchen_context(), DriverLock(timeout_s=0.5)
    return lock, WebSource(lock, Controls(page_controls(default_keyboard(context)), context))


def test_a_page_that_has_the_controls_and_touches_none_stands_still(
    source: tuple[DriverLock, WebSource],
) -> None:
    lock, web = source
    assert web.wish(0.0) is None
    lock.take("a", 1.0)
    wish = web.wish(1.1)
    assert wish is not None
    where = SPEC.action_slices
    assert wish.stamp_s == 1.0
    assert np.isnan(wish.values[where["gripper"]]).all()
    assert not wish.values[where["base"]].any()
    assert not web.gives_back()


def test_positions_of_controls_are_commands_of_the_contract(
    source: tuple[DriverLock, WebSource],
) -> None:
    lock, web = source
    lock.take("a", 2.0)
    lock.steer("a", {"base.0": 0.5, "gripper.0": -1.0, "unknown": 1.0}, 2.1)
    wish = web.wish(2.1)
    assert wish is not None
    forward, yaw = wish.values[SPEC.action_slices["base"]]
    drives = default_keyboard(kitchen_context()).drives
    full = next(drive.speed for drive in drives if (drive.part, drive.value) == ("base", 0))
    assert (forward, yaw) == (pytest.approx(0.5 * full), 0.0)
    assert wish.values[SPEC.action_slices["gripper"]] == 0.0
    assert web.wish(2.7) is None  # silent for longer than the time-out
    assert not web.gives_back()  # a page that goes away stops the robot


def test_a_policy_drives_again_only_when_a_page_says_so(
    source: tuple[DriverLock, WebSource],
) -> None:
    lock, web = source
    lock.take("a", 3.0)
    lock.release("b", back=True)
    assert not web.gives_back()
    lock.release("a")
    assert not web.gives_back()
    lock.take("a", 3.1)
    lock.release("a", back=True)
    assert web.gives_back()
    assert not web.gives_back()


def test_every_value_of_the_action_has_a_widget_and_keys_of_its_own() -> None:
    context = kitchen_context()
    drives = default_keyboard(context)
    layout = page_layout(context, drives)
    shown = [
        axis["name"]
        for widget in layout["widgets"]
        for axis in (widget.get("x"), widget.get("y"), widget)
        if axis and "name" in axis
    ]
    assert sorted(shown) == sorted(f"{drive.part}.{drive.value}" for drive in drives.drives)
    assert len(shown) == SPEC.action_size
    assert {key["name"] for key in layout["keys"].values()} == set(shown)
    kinds = [(widget["kind"], widget["part"]) for widget in layout["widgets"]]
    assert kinds == [
        ("stick", "base"), ("stick", "arm translation"), ("lever", "arm translation"),
        ("stick", "arm rotation"), ("lever", "arm rotation"), ("toggle", "gripper"),
        ("hold", "terminate"),
    ]  # fmt: skip
    base, arm, height, turn, roll = (widget["labels"] for widget in layout["widgets"][:5])
    assert base == {"up": "forward", "down": "back", "left": "turn left", "right": "turn right"}
    assert (arm["left"], height) == ("left", {"up": "up", "down": "down"})
    assert (turn["up"], turn["down"]) == ("pitch up", "pitch down")
    assert roll == {"up": "roll right", "down": "roll left"}
    keys = layout["keys"]
    assert keys["KeyW"] == {"name": "base.0", "value": 1}
    assert keys["KeyA"] == {"name": "base.1", "value": 1}  # to turn left is positive
    assert keys["ArrowRight"] == {"name": "arm_translation.1", "value": -1}
    assert keys["KeyI"] == {"name": "arm_rotation.1", "value": -1}  # up on the stick is to pitch up
