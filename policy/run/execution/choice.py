"""The executions by what the user writes for them. Nothing here imports PyTorch."""

from __future__ import annotations

import math

from ttm.policy.errors import UserError
from ttm.policy.run.execution.ensemble import TemporalEnsemble
from ttm.policy.run.execution.execution import Execution
from ttm.policy.run.execution.receding import RecedingHorizon

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
    """Return the execution that `text` names, for a policy that predicts `chunk` actions of size A.

    Raises `UserError` if it is none, or asks for more actions than the policy predicts.
    """
    kind, value = parse_execution(text)
    if kind == "receding":
        if value > chunk:
            raise UserError(
                f"execution {text} carries out {value:g} actions of a chunk, but this policy predicts "
                f"{chunk} a tick; give receding:{chunk} or less, or train with a larger --chunk"
            )
        return RecedingHorizon(text, int(value), action_size)
    if chunk == 1:
        raise UserError(
            f"execution {text} averages chunks, but this policy predicts 1 action a tick; give "
            f"{NEWEST}, or train with a larger --chunk"
        )
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
        raise UserError(
            f"execution '{text}' is unknown; give receding:N with N from 1 on, or ensemble:M with a "
            "number M, such as ensemble:0.01"
        )
    return kind, value
