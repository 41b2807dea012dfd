"""A device by which a person drives (`Source`), and what it must know of the robot (`TeleopContext`).

Keyboard, gamepad, tracked hand, leader arm and web page each are a source. A `TeleopSession` asks its
source some fifty times a second, and takes care of limits, time-outs and the emergency stop; a source only
says what the person wants. It uses no ROS, so that tests can set the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec
from ttm_policy.contract import JOINT_TYPES, RobotContract, goal_sources

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Wish:
    """What a person wants the robot to do.

    `values`, (A,), are in the order and the units of the spec's action, not limited yet: a displacement
    per tick is that of a whole tick, however often the source is asked. NaN leaves a value to what is in
    force: velocities are then zero, and a gripper or a joint keeps its goal.
    """

    values: Vector
    stamp_s: float
    """When the device was heard last, on the steady clock (`time.monotonic`), in seconds.

    A wish that is older than `Source.timeout_s` stops the robot.
    """


class Source(ABC):
    """A device in a person's hands. All calls come from the thread that spins the node."""

    name: str
    """What messages call it, such as `keyboard`."""
    timeout_s: float
    """The longest silence of the device, in seconds, after which the robot stops."""
    problem: str = ""
    """Why what the person touches moves nothing; empty if it does, or if silence is the reason."""
    _gives_back = False

    @property
    def unheard(self) -> str:
        """What the controls name and was never heard, such as a misspelt topic; empty if nothing."""
        return ""

    @abstractmethod
    def wish(self, now_s: float) -> Wish | None:
        """Return what the person wants at a time on the steady clock, in seconds.

        None means that nobody touches the controls. The robot then stands still; if a policy drives,
        it goes on. A person who touches them and wants to stand still gives zeros.
        """

    def gives_back(self) -> bool:
        """Return whether the person has asked, since the last call, that the policy drives again."""
        asked, self._gives_back = self._gives_back, False
        return asked


@dataclass
class TeleopContext:
    """The robot's contract, the spec of what is recorded, and the limits of its parameters."""

    contract: RobotContract
    spec: PolicySpec
    limits: Mapping[str, float]
    goals: Vector = field(init=False)
    """Where joints and gripper are, or were sent last, (A,) in the spec's units; NaN if unknown."""

    def __post_init__(self) -> None:
        self.goals = np.full(self.spec.action_size, np.nan, np.float32)

    @property
    def measured(self) -> RobotContract:
        """The contract with the inputs that limits and goals of joints need, and no others."""
        needed = {source.name for source in goal_sources(self.contract)}
        if self.contract.workspace is not None:
            needed.add(self.contract.workspace.position)
        vectors = tuple(source for source in self.contract.vectors if source.name in needed)
        return replace(self.contract, images=(), vectors=vectors, executed=None)

    @property
    def is_goal(self) -> npt.NDArray[np.bool_]:
        """Which values of the action are goals of joints, (A,)."""
        found = np.zeros(self.spec.action_size, np.bool_)
        for sink in self.contract.actions:
            found[self.spec.action_slices[sink.name]] = sink.type in JOINT_TYPES
        return found

    @property
    def still(self) -> Vector:
        """The wish (A,) to stand still: zeros, and NaN for goals that stay."""
        return np.where(self.is_goal, np.nan, 0).astype(np.float32)
