"""The interface of executions, which choose the action of a tick from predicted chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from ttm.policy.errors import UserError
from ttm.policy.run.snapshot import array_to_text, text_to_array
from ttm.policy.spec import Array

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
        """Return the plan before the first chunk."""

    @abstractmethod
    def next(self, chunk: Array, plan: Plan) -> tuple[Array, Plan]:
        """Return the action of this tick, (A,), and the new plan. Does not change `plan`.

        chunk: (K, A), the decoded actions of this tick and of the K - 1 ticks after it.
        """

    def to_snapshot(self, plan: Plan) -> dict[str, Array]:
        """Return the entries of a snapshot for `plan`; none for an execution that keeps nothing."""
        if not plan:
            return {}
        copies = {PLAN + name: value.copy() for name, value in plan.items()}
        return {EXECUTION: text_to_array(self.name), **copies}

    def from_snapshot(self, snapshot: Mapping[str, Array]) -> Plan:
        """Return the plan of a snapshot, or a new one if another execution made the snapshot.

        Raises `UserError` if the entries of the plan have other shapes, or are not finite.
        """
        plan = self.initial_plan()
        if EXECUTION not in snapshot or array_to_text(snapshot[EXECUTION]) != self.name:
            return plan
        for name, now in plan.items():
            given = np.asarray(snapshot.get(PLAN + name))
            if (
                given.shape != now.shape
                or given.dtype.kind not in "if"
                or not np.isfinite(given).all()
            ):
                raise UserError(
                    f"the snapshot's '{PLAN}{name}' is missing, not finite, or not of shape {now.shape}; "
                    "restore it into the policy that it was taken from"
                )
            plan[name] = given.astype(now.dtype)
        return plan
