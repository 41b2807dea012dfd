"""What the presses have shown, beside the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ttm.training.bench.bars import Line

ANSWER_MS = 20.0
SILENCE_S = 1.5
"""Diagnostics come once a second."""

NOTES = """\
  driving    while the policy moves the robot; asked: while somebody calls set_parameters with 3,000 values,
             again and again; loading: while the language model prepares an instruction that nobody has
             given before, in a process of its own.
  prepared   how long such an instruction took while nothing was pressed, and the longest time without
             diagnostics meanwhile.
"""


def lines(measured: Mapping[str, Any]) -> list[Line]:
    """Return all figures with their bars. measured: the fields of `ttm_policy.faults.presses.Measured`."""
    silence_s = measured["silence_s"]
    return [
        *_answers("driving", measured["driving_s"], None),
        *_answers("asked", measured["asked_s"], ANSWER_MS),
        *_answers("loading", measured["loading_s"], ANSWER_MS),
        Line("prepared in, s", measured["prepared_s"], 1, "", None),
        Line("longest silence, s", silence_s, 2, f"<= {SILENCE_S:g}", silence_s <= SILENCE_S),
    ]


def _answers(state: str, took_s: Sequence[float], bar_ms: float | None) -> list[Line]:
    p50, p95, worst = np.percentile(took_s, [50, 95, 100]) * 1e3
    bar, holds = ("", None) if bar_ms is None else (f"<= {bar_ms:g}", bool(worst <= bar_ms))
    return [
        Line(f"{state}: presses", len(took_s), 0, "", None),
        Line("median, ms", p50, 1, "", None),
        Line("p95, ms", p95, 1, "", None),
        Line("worst, ms", worst, 1, bar, holds),
    ]
