"""Speed, acceleration and jerk of commanded speeds, whatever is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ttm_policy.limits import MotionBounds, MotionFilter, shorten

PERIOD_S = 0.1


def _run(wanted: np.ndarray, bounds: MotionBounds, size: int = 1) -> np.ndarray:
    """wanted: (T, size) -> what may be commanded, (T, size)."""
    motion = MotionFilter([slice(0, size)], PERIOD_S)
    allowed = []
    for speed in wanted:
        allowed.append(motion.apply(speed, [bounds]))
        motion.commanded(allowed[-1])
    return np.array(allowed)


def _derivatives(speeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Acceleration and jerk of speeds (T, size) that begin at rest."""
    acceleration = np.diff(speeds, axis=0, prepend=0 * speeds[:1]) / PERIOD_S
    return acceleration, np.diff(acceleration, axis=0, prepend=0 * speeds[:1]) / PERIOD_S


BOUNDS = [
    MotionBounds(0.5, 1.0, 4.0),
    MotionBounds(0.5, 1.0),
    MotionBounds(0.5, math.inf, 3.0),
    MotionBounds(0.05, 10.0, 0.5),
    MotionBounds(2.0, 0.1, 100.0),
]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("hold", [1, 3, 20])
def test_no_sequence_of_wanted_speeds_exceeds_a_bound(bounds: MotionBounds, hold: int) -> None:
    rng = np.random.default_rng(0)
    wanted = rng.normal(0, 1, (100, 1)).repeat(hold, axis=0)
    speeds = _run(wanted, bounds)
    acceleration, jerk = _derivatives(speeds)
    assert np.abs(speeds).max() <= bounds.speed
    assert np.abs(acceleration).max() <= bounds.acceleration * (1 + 1e-9)
    assert np.abs(jerk).max() <= bounds.jerk * (1 + 1e-9) + 1e-9
    assert np.abs(speeds).max() > 0.5 * min(bounds.speed, 0.05)  # it does move


@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_constant_speed_is_reached_without_overshoot(bounds: MotionBounds) -> None:
    speeds = _run(np.full((400, 1), 0.8 * bounds.speed), bounds)[:, 0]
    assert (np.diff(speeds) >= 0).all()
    assert speeds[-1] == 0.8 * bounds.speed


def test_the_length_of_a_vector_is_bounded_as_a_whole() -> None:
    rng = np.random.default_rng(1)
    wanted = rng.normal(0, 1, (300, 3))
    bounds = MotionBounds(0.5, 2.0)
    speeds = _run(wanted, bounds, size=3)
    acceleration, _ = _derivatives(speeds)
    assert np.linalg.norm(speeds, axis=1).max() <= 0.5
    assert np.linalg.norm(acceleration, axis=1).max() <= 2.0 * (1 + 1e-9)


def test_what_is_within_the_bounds_keeps_its_bits() -> None:
    wanted = np.array([[0.1], [0.2], [0.25]])
    assert np.array_equal(_run(wanted, MotionBounds(0.5, 2.0, 30.0)), wanted)
    assert np.array_equal(_run(wanted, MotionBounds(0.5)), wanted)


def test_a_lower_bound_of_the_speed_holds_at_once() -> None:
    motion = MotionFilter([slice(0, 1)], PERIOD_S)
    for _ in range(20):
        motion.commanded(motion.apply(np.array([0.5]), [MotionBounds(0.5, 0.5, 5.0)]))
    assert motion.apply(np.array([0.5]), [MotionBounds(0.1, 0.5, 5.0)]) == pytest.approx([0.1])


def test_after_a_halt_motion_begins_at_rest() -> None:
    motion = MotionFilter([slice(0, 1)], PERIOD_S)
    bounds = [MotionBounds(1.0, 1.0)]
    for _ in range(20):
        motion.commanded(motion.apply(np.array([1.0]), bounds))
    motion.halt()
    assert motion.apply(np.array([1.0]), bounds) == pytest.approx([0.1])


def test_shortening_keeps_the_direction() -> None:
    assert shorten(np.array([3.0, 4.0]), 1.0) == pytest.approx([0.6, 0.8])
    assert np.array_equal(shorten(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])
