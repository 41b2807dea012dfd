"""The tables that `ttm bench tick` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from ttm.training.bench.tick_policy import BAR_MS, CoreRow, WholeRow
from ttm.training.bench.tick_unit import BAR_RATIO, EAGER, NUM_INPUTS, UNIT, WIDTH, FlatRow, UnitRow


def unit_table(rows: Sequence[UnitRow]) -> Table:
    """Ours beside plain eager PyTorch."""
    table = _table(
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
    table = _table("Ticks of a long episode", ("what", "ticks", "median", "ratio", "memory"))
    for row in rows:
        table.add_row(row.what, _span(row.early), f"{row.early_ms:.2f} ms", "", _megabytes(row.early_mb))
        ratio = f"{row.late_ms / row.early_ms:.3f}"
        table.add_row("", _span(row.late), f"{row.late_ms:.2f} ms", ratio, _megabytes(row.late_mb))
    return table


def whole_table(rows: Sequence[WholeRow]) -> Table:
    """From images to action."""
    table = _table(
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
    table = _table(
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


def _table(title: str, columns: Sequence[str]) -> Table:
    """Close columns, so that 80 characters do."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _span(ticks: tuple[int, int]) -> str:
    return f"{ticks[0]:,} to {ticks[1]:,}"


def _megabytes(value: float | None) -> str:
    return "—" if value is None else f"{value:.0f} MB"
