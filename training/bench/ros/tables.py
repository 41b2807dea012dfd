"""The table that `ttm bench ros` prints."""

from __future__ import annotations

from ttm.training.bench.bars import Line
from ttm.training.bench.memory_growth import SETTLING_S
from ttm.training.bench.ros.regularity import LATE, Regularity

CLOSEST_SHARE = 0.5
LATE_SHARE = 0.01
GROWTH_MB = 1.0

NOTES = f"""\
Ticks are the policy's actions as another process receives them, with what two processes and the
network between them add.
  late     the share of periods above {LATE:g} times the one that was asked for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first action until the end;
           a dash if that was too short.
"""


def lines(found: Regularity, growth_mb: float | None, period_s: float) -> list[Line]:
    """Return all figures with their bars. period_s: what was asked for."""
    late_ms, closest_ms = LATE * period_s * 1e3, CLOSEST_SHARE * period_s * 1e3
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("ticks", found.ticks, 0, "", None),
        Line("rate, Hz", found.rate_hz, 2, "", None),
        Line("median period, ms", found.p50_ms, 1, "", None),
        Line("p99 period, ms", found.p99_ms, 1, f"<= {late_ms:g}", found.p99_ms <= late_ms),
        Line("worst period, ms", found.worst_ms, 1, "", None),
        Line(
            "closest ticks, ms",
            found.closest_ms,
            1,
            f">= {closest_ms:g}",
            found.closest_ms >= closest_ms,
        ),
        Line(
            "late, %",
            100 * found.late_share,
            2,
            f"<= {100 * LATE_SHARE:g}",
            found.late_share <= LATE_SHARE,
        ),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]
