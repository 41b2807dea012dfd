"""The interface of engines, which run one tick of the network.

An engine holds no memory. The state is passed in and returned, so that its holder (`PolicyRunner`)
can reset, save and restore it. Every engine gives bit-identical results for identical inputs; the
results of different engines differ by rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.network.inputs import PolicyInputs
from ttm.policy.network.policy import Policy
from ttm.policy.run.tick_module import example_tick
from ttm.policy.spec import Array

WARM_UP_TICKS = 4
"""The first ticks allocate memory and choose kernels. CUDA graphs are recorded in the second."""


class Engine(ABC):
    """Runs ticks of one robot (B = T = 1). It is warmed up when it is constructed."""

    name: str

    @abstractmethod
    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick. Returns the result of `Policy.decode_chunk`, (1, K, A), and the new state.

        inputs and state: on the device that the engine was made for, with all proprioception valid.
        They are not changed, and later calls do not change what was returned.
        """

    def _warm_up(self, policy: Policy) -> None:
        for _ in range(WARM_UP_TICKS):
            self.step(*example_tick(policy))


def to_numpy(values: Tensor) -> Array:
    """Return a copy as an array."""
    copy: Array = values.detach().cpu().numpy().copy()
    return copy
