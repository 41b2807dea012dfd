"""The ways in which orientations and poses are written as numbers. Nothing here imports PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ttm.policy.errors import UserError

ROTATION_SIZES: Mapping[str, int] = MappingProxyType(
    {"xyzw": 4, "wxyz": 4, "rotvec": 3, "rpy": 3, "6d-columns": 6, "6d-rows": 6}
)
"""Name -> number of values.

xyzw, wxyz: a unit quaternion with its real part last or first. rotvec: the axis of rotation, with the
angle in rad as its length (axis-angle). rpy: roll, pitch and yaw in rad about the fixed axes x, y and z,
in this order, as in ROS. 6d-columns: the first two columns of the rotation matrix, one after the other
(Zhou et al. 2019); 6d-rows: its first two rows (PyTorch3D, diffusion_policy, UMI).
"""
WANTED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("xyzw", "wxyz"), "since its length is not 1"),
        **dict.fromkeys(("rotvec", "rpy"), "since it is beyond two turns, as degrees would be"),
        **dict.fromkeys(
            ("6d-columns", "6d-rows"), "since its halves are not orthogonal, of length 1"
        ),
    }
)
"""Name -> why some values are none of the form."""
QUATERNIONS = ("xyzw", "wxyz")
POSE = "pose-"
"""Stands before the name of a rotation that follows a position."""
POSITION_SIZE = 3


@dataclass(frozen=True)
class Form:
    """How an orientation, or a position and then an orientation, is written."""

    rotation: str
    """A name of `ROTATION_SIZES`."""
    pose: bool = False
    """Whether a position, (x, y, z) in m, stands before the orientation."""

    @classmethod
    def parsed(cls, text: str) -> Form:
        """Read the result of `str`. Raises `UserError` for other texts."""
        rotation = text.removeprefix(POSE)
        if rotation not in ROTATION_SIZES:
            raise UserError(
                f"'{text}' is no way to write a rotation; give {', '.join(ROTATION_SIZES)}, or for a "
                f"position and a rotation one of these after {POSE}, such as {POSE}xyzw"
            )
        return cls(rotation, text.startswith(POSE))

    @property
    def num_positions(self) -> int:
        """The number of values that stand before those of the orientation."""
        return POSITION_SIZE if self.pose else 0

    @property
    def size(self) -> int:
        """The number of values."""
        return self.num_positions + ROTATION_SIZES[self.rotation]

    def __str__(self) -> str:
        return (POSE if self.pose else "") + self.rotation
