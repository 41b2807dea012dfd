"""The tables that `ttm bench tick` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ttm.training.bench.tick.period import LATENTS, PERIODIC, PeriodRow
from ttm.training.bench.tick.period import WIDTH as WIDTH_BY_PHASE
from ttm.training.bench.tick.policy import BAR_MS, CoreRow, WholeRow
from ttm.training.bench.tick.unit import BAR_RATIO, EAGER, NUM_INPUTS, UNIT, WIDTH, FlatRow, UnitRow
from ttm.training.common.tables import compact_table

PERIOD_NOTES = f"""\
  early, late   medians of the first and the last quarter's ticks, by turns.
  k-th          ticks at which something new is taken: the latents of tlb at the end of a chunk of
                {LATENTS.chunk_size}, the coarse elements of hourglass at every {PERIODIC["hourglass"].period}th.
                Both are worked out at all ticks, so that all take the same.
A reference implementation of the TLB took 0.6 ms a tick, and 0.73 ms at a chunk's end, at this width
on one core, measured elsewhere.
"""


def unit_table(rows: Sequence[UnitRow]) -> Table:
    """Ours beside plain eager PyTorch."""
    table = compact_table(
        f"A tick of the unit: width {WIDTH}, m = {UNIT.memory_size}, r = {UNIT.process_size}, n = {NUM_INPUTS}, "
        f"{UNIT.num_layers} layers, batch 1",
        ("MLP", "run as", "median", "of plain eager", "bar", "error", "load"),
    )
    for row in rows:
        table.add_row(
            str(row.mlp_size),
            row.how,
            f"{row.median_ms:.2f} ms",
            f"{row.ratio:.2f}",
            f"<= {BAR_RATIO[row.how]}" if row.how in BAR_RATIO else "",
            "" if row.how == EAGER else f"{row.error:.1e}",
            "" if row.how == EAGER else f"{row.load_s:.1f} s",
        )
    return table


def flat_table(rows: Sequence[FlatRow]) -> Table:
    """Whether late ticks cost what early ones do."""
    table = compact_table("Ticks of a long episode", ("what", "ticks", "median", "ratio", "memory"))
    for row in rows:
        table.add_row(
            row.what, _span(row.early), f"{row.early_ms:.2f} ms", "", _megabytes(row.early_mb)
        )
        ratio = f"{row.late_ms / row.early_ms:.3f}"
        table.add_row("", _span(row.late), f"{row.late_ms:.2f} ms", ratio, _megabytes(row.late_mb))
    return table


def period_table(rows: Sequence[PeriodRow]) -> Table:
    """Whether the ticks at which a core takes something new are as quick as the others."""
    table = compact_table(
        f"Ticks of {rows[0].ticks:,} by age and by phase: width {WIDTH_BY_PHASE}, one token, one thread; ms",
        ("core", "run as", "early", "late", "ratio", "others", "k-th", "ratio"),
    )
    for row in rows:
        table.add_row(
            row.what,
            row.how,
            f"{row.early_ms:.3f}",
            f"{row.late_ms:.3f}",
            f"{row.late_ms / row.early_ms:.3f}",
            f"{row.other_ms:.3f}",
            f"{row.turn_ms:.3f}",
            f"{row.turn_ms / row.other_ms:.3f}",
        )
    return table


def whole_table(rows: Sequence[WholeRow]) -> Table:
    """From images to action."""
    table = compact_table(
        "A whole tick: images in, action out (PolicyRunner.step); ms, load in s",
        ("preset, images", "run as", "median", "p99", "bar", "error", "load"),
    )
    for row in rows:
        ours = row.engine != "torch"
        table.add_row(
            f"{row.preset}, {row.cameras} x {row.image_size}x{row.image_size}",
            f"{row.engine} {row.precision}",
            f"{row.median_ms:.1f}",
            f"{row.p99_ms:.1f}",
            f"< {BAR_MS[row.preset]:g}" if ours else "",
            f"{row.error:.1e}" if ours else "",
            f"{row.load_s:.1f}",
        )
    return table


def core_table(rows: Sequence[CoreRow]) -> Table:
    """Every core by itself."""
    table = compact_table(
        "A tick of each temporal core by itself, at the sizes of the tiny preset",
        ("core", "parameters", "state", "PyTorch", "OpenVINO", "ratio", "error"),
    )
    for row in rows:
        table.add_row(
            row.kind,
            f"{row.parameters:,}",
            f"{row.state_values:,}",
            f"{row.torch_ms:.2f} ms",
            f"{row.median_ms:.2f} ms",
            f"{row.median_ms / row.torch_ms:.2f}",
            f"{row.error:.1e}",
        )
    return table


def _span(ticks: tuple[int, int]) -> str:
    return f"{ticks[0]:,} to {ticks[1]:,}"


def _megabytes(value: float | None) -> str:
    return "—" if value is None else f"{value:.0f} MB"
