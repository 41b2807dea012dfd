"""The test of a core's successes against those of the core without memory."""

from __future__ import annotations

from collections.abc import Sequence

from ttm.sim.evaluation.intervals import mcnemar_exact
from ttm.training.study.minigrid.results import CoreResult

BASELINE = "none"
"""The core without memory, against which every other core is tested."""


def p_value_against_no_memory(result: CoreResult, results: Sequence[CoreResult], way: str) -> str:
    """Return McNemar's p of `result` as text; "—" for the baseline itself and where it is missing.

    results: all results of the same episodes. way: how the policies acted, "best" or "drawn".
    """
    baseline = next((known.acting[way] for known in results if known.core == BASELINE), None)
    acting = result.acting[way]
    if baseline is None or acting is baseline:
        return "—"
    p_value = mcnemar_exact(acting.success, baseline.success).p_value
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
