"""What the benchmarks share: printed tables and JSON, timing in turns, and PyTorch's FLOP counter."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy.cores.core import CoreConfig
from ttm.policy.spec import Observation, PolicySpec
from ttm.training.console import compact_table, write_figures

Figures = dict[str, Any]
"""The figures of one line of a table, by name, as they are written to JSON."""

Cell = str | Callable[[Any], str]
"""What makes the text of a cell from its row: a function, or a format of the names of `Figures`."""


def rows_table(title: str, columns: Mapping[str, Cell], rows: Iterable[Any]) -> Table:
    """Return a compact table with one line for each of `rows`.

    columns: heading -> cell, such as `"median": "{median_ms:.2f} ms"`.
    """
    table = compact_table(title, tuple(columns))
    for row in rows:
        table.add_row(*(c(row) if callable(c) else c.format(**row) for c in columns.values()))
    return table


def decimals(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or a dash if there is no value."""
    return "—" if value is None else f"{value:.{digits}f}"


class Report:
    """Prints the tables of a benchmark and collects the figures that `--json` writes."""

    def __init__(self, json_path: Path | None = None, **figures: Any) -> None:
        """json_path: the file for the figures, None for no file; figures: the first ones in it."""
        self.console = Console(highlight=False)
        self.figures = dict(figures)
        self._json_path = json_path

    def text(self, text: str) -> None:
        """Print text whose lines are already wrapped."""
        self.console.print(text, soft_wrap=True, markup=False)

    def table(self, table: Table, notes: str = "") -> None:
        """Print a table, and notes on its columns below it."""
        self.console.print(table)
        if notes:
            self.text(notes)

    def rows(
        self,
        name: str,
        title: str,
        columns: Mapping[str, Cell],
        rows: list[Figures],
        notes: str = "",
    ) -> None:
        """Print `rows` as by `rows_table` with notes below, and keep them as the figures called `name`."""
        self.table(rows_table(title, columns, rows), notes)
        self.figures[name] = rows

    def write(self) -> None:
        """Write the collected figures as JSON if the user asked for a file."""
        figures = json.dumps(self.figures, indent=2, ensure_ascii=False)
        write_figures(self.console, self._json_path, figures)


@dataclass(frozen=True)
class Line:
    """One figure beside the bar that it has to meet."""

    what: str
    value: float | None
    digits: int
    bar: str
    holds: bool | None
    """Whether it meets the bar; None if there is none, or no value."""


def bar_table(title: str, rows: Iterable[Line]) -> Table:
    """Return the table of the figures beside their bars."""
    columns: dict[str, Cell] = {
        "figure": lambda row: row.what,
        "value": lambda row: decimals(row.value, row.digits),
        "bar": lambda row: row.bar,
        "holds": lambda row: {None: "", True: "yes", False: "no"}[row.holds],
    }
    return rows_table(title, columns, rows)


Times = npt.NDArray[np.float64]
"""Seconds of single calls."""

BLOCK = 10
"""Successive calls of one contender before the next one takes its turn."""
DROPPED = 2
"""Calls at the start of each block that are not counted."""


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    blocks: int,
    block: int = BLOCK,
    dropped: int = DROPPED,
) -> dict[str, Times]:
    """Return the seconds of each contender's calls, (blocks * (block - dropped),).

    They take turns in short blocks, so that a machine that becomes slower does so for all of them. The
    first calls of a block are dropped: the threads of the library that ran before keep the cores busy.
    """
    taken: dict[str, list[Times]] = {name: [np.empty(0)] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            taken[name].append(repeated(call, block)[dropped:])
    return {name: np.concatenate(times) for name, times in taken.items()}


def repeated(call: Callable[[], object], count: int) -> Times:
    """Return the seconds of each of `count` successive calls, (count,)."""
    times = np.empty(count)
    for number in range(count):
        begun = time.perf_counter()
        call()
        times[number] = time.perf_counter() - begun
    return times


def median_ms(times: Times) -> float:
    """Return the median of `times` (in seconds) in milliseconds."""
    return float(np.median(times)) * 1e3


def random_observation(spec: PolicySpec, rng: np.random.Generator) -> Observation:
    """Return an observation of noise."""
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}


@dataclass(frozen=True)
class CountedStep:
    """One step at batch 1: multiply-adds of matrix products, values that are carried, weights."""

    multiply_adds: int
    state_values: int
    parameters: int


def counted_step(config: CoreConfig, width: int, num_inputs: int) -> CountedStep:
    """Count a step, which runs on the meta device: shapes without memory or time.

    The counter knows matrix products, convolutions and some of the fused attention kernels, but not
    the one for CPUs, so attention runs as plain matrix products here (`SDPBackend.MATH`). It takes
    two for a multiply-add, and nothing for element-wise work.
    """
    with torch.device("meta"), torch.no_grad():
        # Libraries that replace functions of PyTorch while they load can make it forget that these
        # functions create tensors, which then lie on the CPU in spite of the context.
        core = config.build(width, num_inputs).eval().to("meta")
        tokens = torch.zeros(1, num_inputs, width)
        state = core.initial_state(1)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            core.step(tokens, state)
    return CountedStep(
        multiply_adds=counter.get_total_flops() // 2,
        state_values=sum(value.numel() for value in state.values()),
        parameters=num_parameters(core),
    )


def num_parameters(module: torch.nn.Module) -> int:
    """Return the number of weights of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def resident_mb(process: int | None = None) -> float | None:
    """Return the resident memory (MB) of a process, by default this one; None where it is unknown."""
    try:
        status = Path(f"/proc/{process or 'self'}/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) / 1e3 if found else None
