"""How long a command stays in force between two ticks, and how it changes."""

from __future__ import annotations

import numpy as np
import pytest

from ttm_policy.commands import HeldCommand

PERIOD_S = 0.2
SERVO_TIMEOUT_S = 0.1
"""That of MoveIt Servo: it stops this long after the newest command."""
STEP = np.array([1.0, 0.0], np.float32)
NONE, ALL, FIRST = np.array([False, False]), np.array([True, True]), np.array([True, False])


def _held(smooth: np.ndarray, lifespan_s: float = 0.3) -> HeldCommand:
    return HeldCommand(smooth, period_s=PERIOD_S, lifespan_s=lifespan_s)


def test_a_command_keeps_its_bits_until_its_lifespan_ends() -> None:
    held, command = _held(NONE), np.array([0.1, -0.7], np.float32)
    assert held.at(1.0) is None
    held.begin(command, 1.0)
    for now_s in (1.0, 1.1, 1.29):
        assert np.array_equal(held.at(now_s), command)
    assert held.at(1.31) is None
    assert held.at(0.9) is None  # the clock was set back
    assert held.in_force


def test_a_command_may_have_a_lifespan_of_its_own() -> None:
    held = _held(NONE, lifespan_s=0.3)
    held.begin(STEP, 1.0, 0.5)
    assert np.array_equal(held.at(1.49), STEP)
    assert held.at(1.51) is None
    held.begin(STEP, 2.0)
    assert held.at(2.31) is None, "the next one has the usual lifespan"


def test_a_stop_is_at_once_even_if_the_command_is_smooth() -> None:
    held = _held(ALL)
    held.begin(STEP, 1.0)
    held.stop()
    assert held.at(1.1) is None
    assert not held.in_force


def test_smooth_values_go_over_within_half_a_tick_and_the_others_at_once() -> None:
    held = _held(FIRST)
    held.begin(np.array([1.0, 1.0], np.float32), 0.0)
    assert np.allclose(held.at(0.0), [0.0, 1.0])
    assert np.allclose(held.at(0.05), [0.5, 1.0])
    assert np.array_equal(held.at(0.1), [1.0, 1.0])
    held.begin(np.array([-1.0, -1.0], np.float32), 0.2)
    assert np.allclose(held.at(0.25), [0.0, -1.0])
    held.begin(np.array([1.0, 1.0], np.float32), 0.25)  # from where it is, not from its goal
    assert np.allclose(held.at(0.275), [0.25, 1.0])


def _travelled(held: HeldCommand, rate_hz: float, ticks: int) -> float:
    """Return how far a stand-in of MoveIt Servo moves at STEP a second, as a share of the commanded."""
    sent: list[tuple[float, float]] = []
    for tick in range(ticks):
        began_s = tick * PERIOD_S
        held.begin(STEP, began_s)
        for resend in range(max(1, round(PERIOD_S * rate_hz))):
            at_s = began_s + (resend / rate_hz if rate_hz else 0.0)
            value = held.at(at_s)
            assert value is not None
            sent.append((at_s, float(value[0])))
    ends_s = [at_s for at_s, _ in sent[1:]] + [ticks * PERIOD_S]
    moved = sum(
        speed * min(end_s - at_s, SERVO_TIMEOUT_S)
        for (at_s, speed), end_s in zip(sent, ends_s, strict=True)
    )
    return moved / (ticks * PERIOD_S)


@pytest.mark.parametrize("rate_hz", [20.0, 30.0, 50.0])
@pytest.mark.parametrize("smooth", [NONE, ALL])
def test_a_servo_with_a_short_time_out_travels_what_was_commanded(
    rate_hz: float, smooth: np.ndarray
) -> None:
    assert 0.95 <= _travelled(_held(smooth), rate_hz, ticks=20) <= 1.0 + 1e-6


def test_commands_that_are_sent_once_are_carried_out_by_half() -> None:
    assert _travelled(_held(NONE), 0.0, ticks=20) == pytest.approx(0.5)
