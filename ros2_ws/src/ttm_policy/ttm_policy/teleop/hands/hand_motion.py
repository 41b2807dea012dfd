"""What a tracked hand has moved, and how that becomes motion of the robot. It uses no ROS.

The hand's motion while its clutch is held is owed to the robot, which gets it spread over `SPREAD_S`. What
the robot cannot do, since its limits are lower, is owed for at most `LONGEST_LAG_S` of its fastest motion, so
that it stands still soon after the hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttm_policy.rotations import rotation_between

Numbers = npt.NDArray[np.float64]

JUMP_M, JUMP_RAD = 0.15, 0.6
"""No hand moves or turns further between two messages of a tracker. Farther is a lost target."""
SPREAD_S = 0.1
"""What a hand has moved is caught up with this time constant."""
LONGEST_LAG_S = 0.3


@dataclass(frozen=True)
class Pose:
    """Where a hand is: position (3,) in m and unit quaternion (4,), x y z w."""

    position: Numbers
    orientation: Numbers

    @classmethod
    def of(cls, position: npt.ArrayLike, quaternion: npt.ArrayLike) -> Pose | None:
        """Return a pose; None if it is not finite, or the quaternion has no length of about 1."""
        place, turn = np.asarray(position, np.float64), np.asarray(quaternion, np.float64)
        length = float(np.linalg.norm(turn))
        if not np.isfinite(place).all() or not 0.5 < length < 2.0:
            return None
        return cls(place, turn / length)

    def motion_to(self, other: Pose) -> tuple[Numbers, Numbers]:
        """Return displacement (3,) and rotation vector (3,), both in the frame of the poses."""
        return other.position - self.position, rotation_between(self.orientation, other.orientation)


def is_jump(displacement: Numbers, rotation: Numbers) -> bool:
    """Return whether a motion between two messages is none of a hand."""
    return bool(np.linalg.norm(displacement) > JUMP_M or np.linalg.norm(rotation) > JUMP_RAD)


class OwedMotion:
    """The motion along three axes that the robot has not been told yet.

    most: the largest speed, above 0; inf for none.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._owed: Numbers = np.zeros(3)

    def add(self, motion: Numbers) -> None:
        """Owe a motion, (3,)."""
        self._owed = _shortened(self._owed + motion, self._most * LONGEST_LAG_S)

    def take(self, seconds: float) -> Numbers:
        """Return the speed (3,) for the next so many seconds, in which that motion is done."""
        speed = _shortened(self._owed / max(SPREAD_S, seconds), self._most)
        self._owed = self._owed - speed * seconds
        return speed

    def forget(self) -> None:
        """Owe nothing."""
        self._owed = np.zeros(3)


def _shortened(vector: Numbers, most: float) -> Numbers:
    """Return a vector of the same direction that is no longer than `most`."""
    length = float(np.linalg.norm(vector))
    return vector if length <= most else vector * (most / length)
