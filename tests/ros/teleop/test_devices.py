"""Keyboard and gamepad as sources."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from sensor_msgs.msg import Joy

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.teleop.controls import ControlMap, Controls, Drive
from ttm_policy.teleop.devices import HOLD_S, JoyState, Keyboard
from ttm_policy.teleop.source import TeleopContext

BASE = SPEC.action_slices["base"].start


def test_keys_count_as_held_for_a_moment(context: TeleopContext) -> None:
    waiting, others = deque(["w"]), []
    drives = (Drive("base", 0, "w", "s", 0.2), Drive("base", 1, "a", "e", 0.4))
    controls = Controls(ControlMap(drives, gives_back="enter"), context)
    keyboard = Keyboard(controls, lambda: waiting.popleft() if waiting else None, others.append)
    wish = keyboard.wish(1.0)
    assert wish is not None
    assert (wish.values[BASE], wish.stamp_s) == (np.float32(0.2), 1.0)
    waiting.extend("xa+")
    wish = keyboard.wish(1.1)
    assert wish is not None
    assert wish.values[BASE : BASE + 2].tolist() == np.float32([0.25, 0.5]).tolist()
    assert (wish.stamp_s, others) == (1.1, ["x"])
    wish = keyboard.wish(1.01 + HOLD_S)  # w was not repeated
    assert wish is not None
    assert wish.values[BASE : BASE + 2].tolist() == [0, 0.5]
    assert keyboard.wish(1.11 + HOLD_S) is None
    waiting.extend(["w", "enter"])  # giving back lets go of all keys
    assert keyboard.wish(2.0) is None
    assert (keyboard.gives_back(), keyboard.gives_back()) == (True, False)


def test_axes_and_buttons_have_names() -> None:
    state = JoyState()
    assert state("axis 1") == 0.0
    state.take(Joy(axes=[0.0, -0.5], buttons=[0, 0, 1]), 3.0)
    assert (state("axis 1"), state("button 2"), state("button 9")) == (-0.5, 1.0, 0.0)
    assert state.heard_s == 3.0
    state.take(Joy(axes=[math.nan, -math.inf, 1e300]), 4.0)
    assert [state(f"axis {number}") for number in range(3)] == [0.0, 0.0, 0.0]


def test_a_trigger_is_held_while_it_is_pressed() -> None:
    """`joy_node` reports 0 before the first touch, 1 while it is released and -1 while it is pressed."""
    state, held = JoyState(), []
    for axis in (0.0, -1.0, 1.0):
        state.take(Joy(axes=[0.0, 0.0, axis]), 0.0)
        held.append(state("trigger 2"))
    assert held == [0.0, 1.0, 0.0]
