"""Motion of a hand: what it is, what is none, and how it is handed on."""

from __future__ import annotations

import numpy as np
import pytest

from ttm_policy.teleop.tracking import LONGEST_LAG_S, MotionBacklog, Pose

HALF = np.sqrt(0.5)


@pytest.mark.parametrize("before", [(0, 0, 0, 1), (HALF, 0, 0, HALF), (0.5, -0.5, 0.5, 0.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_turn_is_told_in_the_fixed_frame_whatever_the_orientation_is(before, sign):
    """A quarter turn about z, applied from the left. Both signs of a quaternion are the same turn."""
    x, y, z, w = before
    after = HALF * np.array([x - y, y + x, z + w, w - z])
    first, second = Pose.of((0, 0, 0), before), Pose.of((1, 2, 3), sign * after)
    assert first is not None
    assert second is not None
    displacement, rotation = first.motion_to(second)
    assert displacement.tolist() == [1, 2, 3]
    assert rotation == pytest.approx([0, 0, np.pi / 2], abs=1e-9)
    assert first.motion_to(first)[1] == pytest.approx([0, 0, 0])


@pytest.mark.parametrize(
    ("position", "quaternion"),
    [((np.nan, 0, 0), (0, 0, 0, 1)), ((0, np.inf, 0), (0, 0, 0, 1)), ((0, 0, 0), (0, 0, 0, 0)),
     ((0, 0, 0), (np.nan, 0, 0, 1))],
)  # fmt: skip
def test_what_is_no_pose_is_refused(position, quaternion):
    assert Pose.of(position, quaternion) is None


def test_all_that_is_owed_is_handed_on_and_no_faster_than_allowed():
    owed, moved = MotionBacklog(0.5), np.zeros(3)
    owed.add(np.array([0.03, -0.04, 0.0]))
    for _ in range(60):
        speed = owed.take(0.02)
        assert np.linalg.norm(speed) <= 0.5 + 1e-9
        moved += speed * 0.02
    assert moved == pytest.approx([0.03, -0.04, 0.0], abs=1e-5)
    for _ in range(10):
        owed.add(np.array([1.0, 0.0, 0.0]))
    fast = [owed.take(0.02)[0] for _ in range(60)]
    assert sum(fast) * 0.02 == pytest.approx(0.5 * LONGEST_LAG_S, rel=1e-3)
    owed.add(np.array([1.0, 0.0, 0.0]))
    owed.clear()
    assert owed.take(0.02).tolist() == [0, 0, 0]
