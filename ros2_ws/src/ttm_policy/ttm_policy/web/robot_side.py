"""What the web page's server needs of the robot. `ttm_policy.web.robot_over_ros` gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class LiveFrame(NamedTuple):
    """The newest frame of a camera: how many there were before it, and a JPEG."""

    number: int
    jpeg: bytes


class RobotSide(Protocol):
    """The robot and its recorder, as the page sees them. Calls come from the server's thread."""

    @property
    def cameras(self) -> Sequence[str]:
        """The names of the cameras, that for people first."""

    def facts(self) -> Mapping[str, Any]:
        """Return what hardly changes: name of the robot, controls, and known instructions."""

    def state(self) -> Mapping[str, Any]:
        """Return what changes: the recorder, why the robot does not move, and what nodes report."""

    def frame(self, camera: str) -> LiveFrame | None:
        """Return the newest frame of a camera, or None before the first one."""

    async def start(self) -> str:
        """Begin an episode; return what happens, in words. Raises `UserError` if it cannot be."""

    async def stop(self, success: bool) -> str:
        """End the episode and keep it; as `start`."""

    async def discard(self) -> str:
        """End the episode and drop it; as `start`."""

    async def scene(self, same: bool) -> str:
        """Begin another scene of the simulation, or the same one again; as `start`."""

    async def e_stop(self) -> str:
        """Stop the robot, whoever drives, until `rearm`; as `start`. It waits for nothing."""

    async def rearm(self) -> str:
        """Let the robot move again after an emergency stop; as `start`."""

    async def instruct(self, text: str) -> str:
        """Tell the robot what to do; as `start`."""
