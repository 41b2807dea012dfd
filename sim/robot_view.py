"""What visualisers need of a simulated robot: its links, where they are, and what its cameras are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ttm.sim.environment import Env

ODOMETRY_FRAME = "odom"
"""The frame that stands still in the world and that the base moves in."""


@dataclass(frozen=True)
class Pose:
    """Where a frame is."""

    position_m: np.ndarray
    """(3,)."""
    quaternion_xyzw: np.ndarray
    """(4,)."""


@dataclass(frozen=True)
class Frame:
    """A frame of the robot and the frame that it is attached to."""

    name: str
    parent: str
    moves: bool
    """Whether it moves in its parent."""


class RobotView(Protocol):
    """What an environment returns from its optional method `robot_view()`.

    It is that of the present episode, and is asked for anew after a reset.
    """

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All frames. The first is the base, whose parent is `ODOMETRY_FRAME`."""

    @property
    def camera_fov_rad(self) -> Mapping[str, float]:
        """The vertical angle of view of each camera of the policy's spec, rad.

        Each has a frame with the name that `camera_frame` returns.
        """

    def description(self) -> str:
        """Return the robot as URDF. Its links are named as the frames."""

    def poses(self) -> dict[str, Pose]:
        """Return where each frame is in its parent now."""


def camera_frame(camera: str) -> str:
    """Return the name of a camera's optical frame: x to the right, y down, z forward (REP 103)."""
    return f"{camera}_optical_frame"


def robot_view_of(env: Env) -> RobotView | None:
    """Return the view of the present episode's robot, or None if the environment has none."""
    if not env.has_wrapper_attr("robot_view"):
        return None
    view: RobotView = env.get_wrapper_attr("robot_view")()
    return view
