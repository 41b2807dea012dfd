"""Rotations between two orientations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def rotation_between(before: npt.ArrayLike, after: npt.ArrayLike) -> Numbers:
    """Return the rotation vector (3,) in rad that turns one orientation to the other the shorter way.

    Both are unit quaternions (4,), x y z w. The vector is in the fixed frame in which they are.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    back, scalar = -first[:3], first[3]
    turned = second[3] * back + scalar * second[:3] + np.cross(second[:3], back)
    cosine = second[3] * scalar - second[:3] @ back
    turned = np.copysign(1.0, cosine) * turned
    sine = float(np.linalg.norm(turned))
    return np.zeros(3) if sine == 0.0 else turned / sine * 2 * np.arctan2(sine, abs(cosine))
