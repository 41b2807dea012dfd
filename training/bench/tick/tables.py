"""The tables that `ttm bench tick` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ttm.training.bench.report import rows_table
from ttm.training.bench.tick.cores import CoreRow
from ttm.training.bench.tick.flat import FlatRow
from ttm.training.bench.tick.periodic_ticks import LATENTS, PERIODIC, PeriodRow
from ttm.training.bench.tick.periodic_ticks import WIDTH as PERIODIC_WIDTH
from ttm.training.bench.tick.unit import BAR_RATIO, EAGER, NUM_INPUTS, UNIT, WIDTH, UnitRow
from ttm.training.bench.tick.whole import BAR_MS, WholeRow
from ttm.training.common.tables import compact_table

PERIOD_NOTES = f"""\
  early, late   medians of the ticks of the first and of the last quarter, timed in turns.
  k-th          the ticks at which the state takes something new: for tlb, the latents at the end
                of a chunk of {LATENTS.chunk_size} ticks; for hourglass, the coarse elements at
                every {PERIODIC["hourglass"].period}th tick. Both cores compute these at every tick,
                so that all ticks take equally long.
A reference implementation of the TLB took 0.6 ms a tick, and 0.73 ms at the end of a chunk, at this
width on one core. That was measured elsewhere.
"""


def unit_table(rows: Sequence[UnitRow]) -> Table:
    """Return the table of the compiled unit beside plain eager PyTorch."""
    return rows_table(
        f"A tick of the unit: width {WIDTH}, m = {UNIT.memory_size}, r = {UNIT.process_size}, "
        f"n = {NUM_INPUTS}, {UNIT.num_layers} layers, batch 1",
        {
            "MLP": lambda row: str(row.mlp_size),
            "run as": lambda row: row.how,
            "median": lambda row: f"{row.median_ms:.2f} ms",
            "of plain eager": lambda row: f"{row.ratio:.2f}",
            "bar": lambda row: f"<= {BAR_RATIO[row.how]}" if row.how in BAR_RATIO else "",
            "error": lambda row: "" if row.how == EAGER else f"{row.error:.1e}",
            "load": lambda row: "" if row.how == EAGER else f"{row.load_s:.1f} s",
        },
        rows,
    )


def flat_table(rows: Sequence[FlatRow]) -> Table:
    """Return the table of early and late ticks of long episodes, two lines for each row."""
    table = compact_table("Ticks of a long episode", ("what", "ticks", "median", "ratio", "memory"))
    for row in rows:
        early = (_span(row.early), f"{row.early_ms:.2f} ms", "", _megabytes(row.early_mb))
        ratio = f"{row.late_ms / row.early_ms:.3f}"
        late = (_span(row.late), f"{row.late_ms:.2f} ms", ratio, _megabytes(row.late_mb))
        table.add_row(row.what, *early)
        table.add_row("", *late)
    return table


def period_table(rows: Sequence[PeriodRow]) -> Table:
    """Return the table of ticks by age, and by whether the state takes something new."""
    return rows_table(
        f"Ticks of {rows[0].ticks:,} by age and by phase: width {PERIODIC_WIDTH}, one token, one thread; ms",
        {
            "core": lambda row: row.what,
            "run as": lambda row: row.how,
            "early": lambda row: f"{row.early_ms:.3f}",
            "late": lambda row: f"{row.late_ms:.3f}",
            "late\n/ early": lambda row: f"{row.late_ms / row.early_ms:.3f}",
            "others": lambda row: f"{row.other_ms:.3f}",
            "k-th": lambda row: f"{row.turn_ms:.3f}",
            "k-th\n/ others": lambda row: f"{row.turn_ms / row.other_ms:.3f}",
        },
        rows,
    )


def whole_table(rows: Sequence[WholeRow]) -> Table:
    """Return the table of ticks from images to the action."""
    return rows_table(
        "A whole tick: images in, action out (PolicyRunner.step); ms, load in s",
        {
            "preset, images": lambda row: (
                f"{row.preset}, {row.cameras} x {row.image_size}x{row.image_size}"
            ),
            "run as": lambda row: f"{row.engine} {row.precision}",
            "median": lambda row: f"{row.median_ms:.1f}",
            "p99": lambda row: f"{row.p99_ms:.1f}",
            "bar": lambda row: f"< {BAR_MS[row.preset]:g}" if _compared(row) else "",
            "error": lambda row: f"{row.error:.1e}" if _compared(row) else "",
            "load": lambda row: f"{row.load_s:.1f}",
        },
        rows,
    )


def core_table(rows: Sequence[CoreRow]) -> Table:
    """Return the table of every core by itself."""
    return rows_table(
        "A tick of each temporal core by itself, at the sizes of the tiny preset",
        {
            "core": lambda row: row.kind,
            "parameters": lambda row: f"{row.parameters:,}",
            "state": lambda row: f"{row.state_values:,}",
            "PyTorch": lambda row: f"{row.torch_ms:.2f} ms",
            "OpenVINO": lambda row: f"{row.median_ms:.2f} ms",
            "ratio": lambda row: f"{row.median_ms / row.torch_ms:.2f}",
            "error": lambda row: f"{row.error:.1e}",
        },
        rows,
    )


def _compared(row: WholeRow) -> bool:
    """Whether the row is compared with PyTorch, which has no bar and no error of its own."""
    return row.engine != "torch"


def _span(ticks: tuple[int, int]) -> str:
    return f"{ticks[0]:,} to {ticks[1]:,}"


def _megabytes(value: float | None) -> str:
    return "—" if value is None else f"{value:.0f} MB"
