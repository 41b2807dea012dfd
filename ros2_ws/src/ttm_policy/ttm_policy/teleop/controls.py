"""What the keys, buttons and sticks of a device do to the values of the action. It uses no ROS.

=====================  ==========================================================================
velocity               `speed` while the control is moved, and zero otherwise
goal of a joint        goes on by `speed` a second while the control is moved, and stays otherwise
one of two goals       the higher one after `plus`, the lower one after `minus`, and stays
`std_msgs/Bool`        true while `plus` is pressed
=====================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec
from ttm_policy.contract.robot_contract import JOINT_TYPES, MOTION_TYPES, RobotContract

Vector = npt.NDArray[np.float32]
State = Callable[[str], float]
"""Name of a control -> its deflection, -1 to 1 for a stick and 0 or 1 for a key or button."""

LONGEST_STEP_S = 0.1
"""A goal goes on for at most so long at once, however late it is asked for."""


class Goals:
    """Where joints and gripper are, or were sent last: `values`, (A,) in the spec's units, NaN if unknown."""

    def __init__(self, action_size: int) -> None:
        self.values: Vector = np.full(action_size, np.nan, np.float32)


@dataclass(frozen=True)
class Drive:
    """The controls of one value of the action.

    A stick is `plus` alone, since it goes both ways; a pair of keys or buttons is `plus` and `minus`.
    """

    part: str
    value: int
    plus: str
    minus: str = ""
    speed: float = 1.0
    """At full deflection: of a velocity in the spec's units, of a goal in these per second."""
    dead_man: str = ""
    """The button that must be held meanwhile; empty for none."""


@dataclass(frozen=True)
class ControlMap:
    """All controls of a device.

    `gives_back` is the control that lets a policy drive again. Deflections up to `dead_zone` count as 0.
    """

    drives: tuple[Drive, ...]
    gives_back: str = ""
    dead_zone: float = 0.0


class Controls:
    """Makes a wish out of what is pressed and deflected."""

    def __init__(
        self, controls: ControlMap, contract: RobotContract, spec: PolicySpec, goals: Goals
    ) -> None:
        """goals: where joints and gripper are, from which their controls move them on."""
        self.map = controls
        self.factor = 1.0
        """All speeds are multiplied by this."""
        self._goals, self._read_s = goals, -float("inf")
        self._low, self._high = spec.action_limits
        self._binary = spec.binary_mask
        self._places = [spec.action_slices[d.part].start + d.value for d in controls.drives]
        self.still: Vector = np.zeros(spec.action_size, np.float32)
        """The wish (A,) to stand still: zeros, and NaN for goals that stay."""
        for sink in contract.actions:
            if sink.type in JOINT_TYPES:
                self.still[spec.action_slices[sink.name]] = np.nan
        self._types = {sink.name: sink.type for sink in contract.actions}

    def wish(self, state: State, now_s: float) -> Vector | None:
        """Return the action (A,) that the controls ask for, NaN for goals that stay.

        None if nobody touches them: no dead-man button is held, and without one nothing is deflected.
        """
        step_s = min(now_s - self._read_s, LONGEST_STEP_S)
        self._read_s = now_s
        values, touched = self.still.copy(), False
        for drive, place in zip(self.map.drives, self._places, strict=True):
            held = not drive.dead_man or state(drive.dead_man) > 0.5
            deflection = self._deflection(drive, state) if held else 0.0
            touched |= bool(deflection) or (held and bool(drive.dead_man))
            if deflection:
                values[place] = self._value(drive, place, deflection, step_s)
        return values if touched else None

    def _deflection(self, drive: Drive, state: State) -> float:
        plus, minus = (state(name) if name else 0.0 for name in (drive.plus, drive.minus))
        deflection = plus - minus
        dead = self.map.dead_zone
        if abs(deflection) <= dead:
            return 0.0
        return float(np.copysign(min((abs(deflection) - dead) / (1 - dead), 1.0), deflection))

    def _value(self, drive: Drive, place: int, deflection: float, step_s: float) -> float:
        speed, kind = deflection * drive.speed * self.factor, self._types[drive.part]
        if kind in MOTION_TYPES:
            return speed
        if self._binary[place]:
            return float(self._high[place] if deflection > 0 else self._low[place])
        return float(self._goals.values[place] + speed * step_s)
