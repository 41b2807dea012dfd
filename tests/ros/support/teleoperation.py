"""What a person's controls know of the simulated robot, and a device that does what a test says."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.source import Source, TeleopContext, Wish


def kitchen_context() -> TeleopContext:
    return TeleopContext(load_contract(), SPEC, TeleopParameters().limits)


class FakeSource(Source):
    """Wants what the test says; without a stamp, it was heard just now."""

    def __init__(self, name: str, timeout_s: float = 0.3) -> None:
        self.name, self.timeout_s = name, timeout_s
        self.wanted: np.ndarray | None = None
        self.stamp_s: float | None = None

    def touch(self, value: float, stamp_s: float) -> None:
        self.wanted, self.stamp_s = np.array([value], np.float32), stamp_s

    def ask_to_give_back(self) -> None:
        self._gives_back = True

    def wish(self, now_s: float) -> Wish | None:
        stamp_s = now_s if self.stamp_s is None else self.stamp_s
        return None if self.wanted is None else Wish(self.wanted, stamp_s)
