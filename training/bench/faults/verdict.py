"""What the faults have shown, beside the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ttm.training.bench.bars import Line
from ttm.training.bench.memory_growth import SETTLING_S

GROWTH_MB = 1.0

NOTES = f"""\
  blind    the robot was commanded to move although the fault had lasted longer than max_age_s, a tick
           and --slack-s. Not told: the diagnostics never named the fault.
  recover  from the end of the fault until the robot moves again. A dead end: it does not within 10 s,
           although the services were called that the node's message asks for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first motion until the end;
           a dash if that was too short.
"""


def lines(
    trials: Sequence[Mapping[str, Any]], growth_mb: float | None, blind_after_s: float
) -> list[Line]:
    """Return all figures with their bars.

    trials: the fields of each trial. blind_after_s: how long after its beginning a fault may move the robot.
    """
    blind = sum(trial["blind_moves"] for trial in trials)
    not_still = sum(not trial["stood"] for trial in trials)
    not_told = sum(not trial["told"] for trial in trials)
    recovered_s = [t["recovered_s"] for t in trials if t["recovered_s"] is not None]
    dead_ends = len(trials) - len(recovered_s)
    moving_s = max((trial["moving_s"] for trial in trials), default=0.0)
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("faults", len(trials), 0, "> 0", len(trials) > 0),
        Line("kinds of faults", len({trial["fault"] for trial in trials}), 0, "", None),
        Line("blind moves", blind, 0, "0", blind == 0),
        Line("longest motion, s", moving_s, 3, f"<= {blind_after_s:g}", moving_s <= blind_after_s),
        Line("not at a stand", not_still, 0, "0", not_still == 0),
        Line("not told", not_told, 0, "0", not_told == 0),
        Line("dead ends", dead_ends, 0, "0", dead_ends == 0),
        Line("longest to recover, s", max(recovered_s, default=None), 1, "", None),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]
