"""What is told about the memory while the network may be at work on the next tick."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm.policy.run.runner import PolicyRunner


@dataclass(frozen=True)
class MemoryReport:
    """The state of a runner after a call, taken in the thread of the network."""

    instruction: str = ""
    """The instruction in force, or ""."""
    tick: int = 0
    """Ticks, and so memory writes, since the reset."""
    norms: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """The norm of each part of the memory, (m,)."""

    @classmethod
    def of(cls, runner: PolicyRunner) -> MemoryReport:
        """Return the report of a runner that nobody else uses at this moment."""
        return cls(runner.instruction or "", runner.tick, runner.memory_norms)

    @property
    def norm(self) -> float:
        """The norm of the whole memory."""
        return float(np.linalg.norm(self.norms))

    def to_message(self) -> Float32MultiArray:
        """Return [ticks since the reset, norm of each part of the memory]."""
        message = Float32MultiArray(data=[float(self.tick), *map(float, self.norms)])
        size = len(self.norms)
        message.layout.dim = [
            MultiArrayDimension(label="tick", size=1, stride=1 + size),
            MultiArrayDimension(label="memory_norms", size=size, stride=size),
        ]
        return message
