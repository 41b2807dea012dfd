"""The web page as a device in a person's hands."""

from __future__ import annotations

import numpy as np

from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.source import Wish
from ttm_policy.web.wheel import Wheel


class WebSource:
    """A `ttm_policy.teleop.source.Source` that follows the page that has the controls.

    As long as a page has them, it drives: with all controls at rest, the robot is to stand still.
    """

    name = "web page"
    problem = unheard = ""

    def __init__(self, wheel: Wheel, controls: Controls) -> None:
        self._wheel, self._controls = wheel, controls

    @property
    def timeout_s(self) -> float:
        """The longest silence of the page, in seconds."""
        return self._wheel.timeout_s

    def wish(self, now_s: float) -> Wish | None:
        """Return what the page asks for."""
        held = self._wheel.held(now_s)
        if held is None:
            return None
        axes, heard_s = held
        values = self._controls.wish(lambda name: axes.get(name, 0.0), now_s)
        return Wish(np.array(self._controls.still) if values is None else values, heard_s)

    def gives_back(self) -> bool:
        """Return whether a page has asked for it. One that falls silent or goes away does not."""
        return self._wheel.gives_back()

    def close(self) -> None:
        """Do nothing: the pages belong to the server."""
