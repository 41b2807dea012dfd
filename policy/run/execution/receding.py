"""Receding horizon: the first N actions of a chunk are carried out before the next chunk counts."""

from __future__ import annotations

import numpy as np

from ttm.policy.run.execution.execution import Execution, Plan
from ttm.policy.spec import Array


class RecedingHorizon(Execution):
    """Carry out N of the K actions of a chunk, one a tick, and then the next chunk's.

    The network runs at every tick all the same, because each tick is written to the memory; of the
    chunks in between nothing is used. N = 1 takes the newest prediction at every tick.
    """

    def __init__(self, name: str, num_actions: int, action_size: int) -> None:
        """num_actions: N; action_size: A."""
        self.name = name
        self._shape = (num_actions, action_size)

    def initial_plan(self) -> Plan:
        """Return a plan with no action left; nothing needs to be kept for N = 1."""
        if self._shape[0] == 1:
            return {}
        return {"actions": np.zeros(self._shape, np.float32), "left": np.array(0, np.int64)}

    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        """See `Execution.next`."""
        if not plan:
            return chunk[0], plan
        num_actions, left = len(plan["actions"]), int(plan["left"])
        actions = plan["actions"] if left else chunk[:num_actions].copy()
        left = left or num_actions
        return actions[num_actions - left], {
            "actions": actions,
            "left": np.array(left - 1, np.int64),
        }
