"""Temporal ensembling (Zhao et al. 2023, algorithm 2): the mean of all predictions for a tick."""

from __future__ import annotations

import numpy as np

from ttm.policy.run.execution.execution import Execution, Plan
from ttm.policy.spec import Array


class TemporalEnsemble(Execution):
    """Carry out the weighted mean of what the last K chunks predicted for this tick.

    The prediction that was made i chunks after the oldest one has the weight exp(-M i). With M = 0
    all count the same, with M > 0 the oldest counts most (ACT takes 0.01), and with M < 0 the
    newest. Binary dimensions are averaged as decoded, before they are compared with their threshold.
    """

    def __init__(self, name: str, decay: float, chunk: int, action_size: int) -> None:
        """decay: M; chunk: K; action_size: A."""
        self.name = name
        self._shape = (chunk, action_size)
        self._newest = np.array([_newest_share(decay, n) for n in range(1, chunk + 1)], np.float32)

    def initial_plan(self) -> Plan:
        """Return the means of this tick and of the K - 1 ticks after it, of no chunk so far."""
        return {"means": np.zeros(self._shape, np.float32), "chunks": np.array(0, np.int64)}

    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        """See `Execution.next`."""
        size, chunks = len(chunk), int(plan["chunks"])
        # How many of the chunks so far reach to each of the K ticks: none to the last one.
        reaching = np.minimum(chunks, np.arange(size)[::-1])
        share = self._newest[reaching][:, None]  # (K, 1)
        means = (1 - share) * plan["means"] + share * chunk
        following = np.roll(means, -1, axis=0)  # its last row has no prediction yet
        return means[0], {"means": following, "chunks": np.array(min(chunks + 1, size), np.int64)}


def _newest_share(decay: float, count: int) -> float:
    """Return the share of the newest of `count` predictions in their weighted mean."""
    with np.errstate(over="ignore"):  # a weight beyond all numbers leaves the newest no share
        relative = np.exp(decay * np.arange(count))  # the weights, as multiples of the newest's
    return float(1 / relative.sum())
