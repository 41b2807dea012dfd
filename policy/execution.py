"""Executions, which choose the action of a tick from predicted chunks of actions, without PyTorch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError

Array = npt.NDArray[Any]
Plan = dict[str, Array]
"""What an execution keeps from tick to tick: name -> array. The sizes never change."""

EXECUTION, PLAN = "execution", "plan."
"""In a snapshot: the name of the entry that holds `Execution.name`, and the prefix of the plan's."""


class Execution(ABC):
    """Choose the action of each tick from the chunks that were predicted so far.

    The plan is a value that the caller passes and receives; the execution itself keeps nothing.
    """

    name: str
    """The execution as the user writes it."""

    @abstractmethod
    def initial_plan(self) -> Plan:
        """Return the plan before the first chunk; nothing if nothing is kept."""

    @abstractmethod
    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        """Return the action of this tick, (A,), and the new plan. Does not change `plan`.

        chunk: (K, A), the decoded actions of this tick and of the K - 1 ticks after it.
        """


class TemporalEnsemble(Execution):
    """Carry out the weighted mean of what the last K chunks predicted for this tick.

    This is temporal ensembling (Zhao et al. 2023, algorithm 2). The prediction that was made i chunks
    after the oldest one has the weight exp(-M i). With M = 0 all count the same, with M > 0 the oldest
    counts most (ACT takes 0.01), and with M < 0 the newest. Binary dimensions are averaged as decoded,
    before they are compared with their threshold.
    """

    def __init__(self, name: str, decay: float, chunk: int, action_size: int) -> None:
        """decay: M; chunk: K; action_size: A."""
        self.name = name
        self._shape = (chunk, action_size)
        with np.errstate(over="ignore"):  # a weight beyond all numbers leaves the newest no share
            sums = [np.exp(decay * np.arange(count)).sum() for count in range(1, chunk + 1)]
        # The share of the newest of 1, 2, … chunks: the sums are in units of its weight.
        self.shares = np.array([1 / each for each in sums], np.float32)

    def initial_plan(self) -> Plan:
        """Return the means of this tick and of the K - 1 ticks after it, of no chunk so far."""
        return {"means": np.zeros(self._shape, np.float32), "chunks": np.array(0, np.int64)}

    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        size, chunks = len(chunk), int(plan["chunks"])
        # How many of the chunks so far reach to each of the K ticks: none to the last one.
        reaching = np.minimum(chunks, np.arange(size)[::-1])
        share = self.shares[reaching][:, None]  # (K, 1)
        means = (1 - share) * plan["means"] + share * chunk
        following = np.roll(means, -1, axis=0)  # its last row has no prediction yet
        return means[0], {"means": following, "chunks": np.array(min(chunks + 1, size), np.int64)}


class RecedingHorizon(Execution):
    """Receding horizon: carry out N of the K actions of a chunk, one a tick, then the next chunk's.

    The network runs at every tick all the same, because each tick is written to the memory.
    """

    def __init__(self, name: str, num_actions: int, action_size: int) -> None:
        """num_actions: N; action_size: A."""
        self.name = name
        self._shape = (num_actions, action_size)

    def initial_plan(self) -> Plan:
        if self._shape[0] == 1:
            return {}
        return {"actions": np.zeros(self._shape, np.float32), "left": np.array(0, np.int64)}

    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        if not plan:
            return chunk[0], plan
        num_actions, left = len(plan["actions"]), int(plan["left"])
        actions = plan["actions"] if left else chunk[:num_actions].copy()
        left = left or num_actions
        plan = {"actions": actions, "left": np.array(left - 1, np.int64)}
        return actions[num_actions - left], plan


NEWEST = "receding:1"
"""The default: the newest prediction at every tick, which is all that a policy of K = 1 has."""

EXECUTION_HELP = (
    "Which predicted actions are carried out. For policies trained with --chunk. receding:N: the first "
    "N of a chunk, one a tick, then those of the next chunk. ensemble:M: the mean of what all chunks "
    "that reach to the tick predict, where the i-th one after the oldest weighs exp(-M i), as in ACT. "
    "The memory is written at every tick in both."
)
"""Help text of the options and parameters that take an execution."""


def make_execution(text: str, chunk: int, action_size: int) -> Execution:
    """Return the execution that `text` names, for a policy that predicts `chunk` actions of size A."""
    kind, value = parse_execution(text)
    if kind == "receding":
        if value > chunk:
            raise UserError(f"execution {text}: this policy predicts {chunk} a tick; give no more")
        return RecedingHorizon(text, int(value), action_size)
    if chunk == 1:
        raise UserError(f"execution {text}: this policy predicts 1 action a tick; give {NEWEST}")
    return TemporalEnsemble(text, value, chunk, action_size)


def parse_execution(text: str) -> tuple[str, float]:
    """Return the kind, "receding" or "ensemble", and its number. Raises `UserError` for other texts."""
    kind, _, number = text.partition(":")
    try:
        value = float(int(number) if kind == "receding" else float(number))
    except ValueError:
        value = math.nan
    wrong = not math.isfinite(value) or (kind == "receding" and value < 1)
    if wrong or kind not in ("receding", "ensemble"):
        raise UserError(f"execution '{text}' is unknown; give such as receding:1 or ensemble:0.01")
    return kind, value
