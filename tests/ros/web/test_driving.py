"""Driving by the page without a server: who has the controls, their layout, and what they command."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.policy.errors import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.parameters import WebParameters
from ttm_policy.teleop.controls import Controls, Goals, default_keyboard
from ttm_policy.web.access import Wheel
from ttm_policy.web.robot import WebSource
from ttm_policy.web.views import page_controls, page_layout

DEFAULT_LIMITS = WebParameters().limits


def test_the_wheel_is_one_pages_until_it_lets_go_or_falls_silent() -> None:
    wheel = Wheel(timeout_s=0.5)
    assert wheel.held(0.0) is None
    wheel.take("a", 0.0)
    wheel.steer("a", {"base.0": 1.0}, 0.2)
    assert wheel.held(0.6) == ({"base.0": 1.0}, 0.2)
    with pytest.raises(UserError, match="somebody else drives"):
        wheel.take("b", 0.6)
    wheel.release("b")
    assert wheel.driver(0.6) == "a"
    assert wheel.held(0.71) is None
    with pytest.raises(UserError, match="does not drive"):
        wheel.steer("a", {}, 0.72)
    wheel.take("b", 0.8)
    wheel.release("b")
    assert wheel.driver(0.8) is None


@pytest.fixture(scope="module")
def source() -> tuple[Wheel, WebSource]:
    contract = load_contract()
    drives = default_keyboard(contract, SPEC, DEFAULT_LIMITS)
    wheel = Wheel(timeout_s=0.5)
    return wheel, WebSource(
        wheel, Controls(page_controls(drives), contract, SPEC, Goals(SPEC.action_size))
    )


def test_a_page_that_has_the_controls_and_touches_none_stands_still(
    source: tuple[Wheel, WebSource],
) -> None:
    wheel, web = source
    assert web.wish(0.0) is None
    wheel.take("a", 1.0)
    wish = web.wish(1.1)
    assert wish is not None
    where = SPEC.action_slices
    assert wish.stamp_s == 1.0
    assert np.isnan(wish.values[where["gripper"]]).all()
    assert not wish.values[where["base"]].any()
    assert not web.gives_back()


def test_positions_of_controls_are_commands_of_the_contract(
    source: tuple[Wheel, WebSource],
) -> None:
    wheel, web = source
    wheel.take("a", 2.0)
    wheel.steer("a", {"base.0": 0.5, "gripper.0": -1.0, "unknown": 1.0}, 2.1)
    wish = web.wish(2.1)
    assert wish is not None
    forward, yaw = wish.values[SPEC.action_slices["base"]]
    full = next(d for d in default_keyboard(load_contract(), SPEC, DEFAULT_LIMITS).drives
                if (d.part, d.value) == ("base", 0)).speed  # fmt: skip
    assert (forward, yaw) == (pytest.approx(0.5 * full), 0.0)
    assert wish.values[SPEC.action_slices["gripper"]] == 0.0
    assert web.wish(2.7) is None  # silent for longer than the time-out
    assert not web.gives_back()  # a page that goes away stops the robot


def test_a_policy_drives_again_only_when_a_page_says_so(source: tuple[Wheel, WebSource]) -> None:
    wheel, web = source
    wheel.take("a", 3.0)
    wheel.release("b", back=True)
    assert not web.gives_back()
    wheel.release("a")
    assert not web.gives_back()
    wheel.take("a", 3.1)
    wheel.release("a", back=True)
    assert web.gives_back()
    assert not web.gives_back()


def test_every_value_of_the_action_has_a_widget_and_keys_of_its_own() -> None:
    contract = load_contract()
    drives = default_keyboard(contract, SPEC, DEFAULT_LIMITS)
    layout = page_layout(contract, SPEC, drives)
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
