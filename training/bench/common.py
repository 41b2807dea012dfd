"""What the benchmarks share: printed tables and JSON, timing in turns, and PyTorch's FLOP counter."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy.cores.core import CoreConfig
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
        self.figures = figures
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
class BenchCommand:
    """What the commands `ttm bench …` have in common."""

    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Measure, print tables, and write the figures."""
        report = Report(self.json)
        self.measure(report)
        report.write()
        return 0

    def measure(self, report: Report) -> None:
        """Measure, print tables to `report`, and collect the figures in it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Line:
    """One figure beside the bar that it has to meet."""

    what: str
    value: float | None
    digits: int
    bar: str = ""
    holds: bool | None = None
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


def interleaved(contenders: Mapping[str, Callable[[], object]], blocks: int) -> dict[str, Times]:
    """Return the seconds of each contender's calls, (blocks * (BLOCK - DROPPED),).

    They take turns in short blocks, so that a machine that becomes slower does so for all of them. The
    first calls of a block are dropped: the threads of the library that ran before keep the cores busy.
    """
    taken: dict[str, list[Times]] = {name: [np.empty(0)] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            taken[name].append(repeated(call, BLOCK)[DROPPED:])
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


@dataclass(frozen=True)
class CountedStep:
    """One step at batch 1."""

    multiply_adds: int
    """Of matrix products alone."""
    operations: int
    """Multiply-adds, and half of the element-wise operations; see `ELEMENTWISE`."""
    state_values: int
    """Values that are carried from step to step."""
    parameters: int


def elementwise(each: int) -> Callable[..., int]:
    """Return a formula for the counter: `each` operations for every value of the larger operand."""

    def count(*shapes: Any, out_shape: Any, **_: Any) -> int:
        return each * max(
            math.prod(s) for s in (*shapes[:2], out_shape) if isinstance(s, torch.Size)
        )

    return count


def addmm(bias: object, a: torch.Size, b: object, *, out_shape: torch.Size, **_: Any) -> int:
    """Count a matrix product and the addition of its bias."""
    return (2 * a[1] + 1) * out_shape.numel()


aten = torch.ops.aten
ELEMENTWISE: Mapping[Any, Callable[..., int]] = {
    aten.addmm: addmm,
    aten.native_layer_norm: elementwise(7),
    aten.gelu: elementwise(8),
    **dict.fromkeys((aten._softmax, aten._safe_softmax), elementwise(4)),
    **dict.fromkeys((aten.add, aten.sub, aten.rsub, aten.mul, aten.div), elementwise(1)),
    **dict.fromkeys((aten.mean, aten.prod, aten._adaptive_avg_pool2d), elementwise(1)),
}
"""Operators that PyTorch's counter leaves out -> operations, as the cost analysis of XLA counts them.

Each addition, multiplication or division of one value is one operation; exp, tanh, sigmoid and roots are
none. A layer norm takes 7 for each value: sum, square, sum of squares, subtract the mean, multiply by
scale / deviation (2), add the bias. gelu takes 5 for the argument of tanh and 3 around it, softmax 4:
maximum, its subtraction, sum, division.
"""


def counted_flops(
    call: Callable[[], object], formulas: Mapping[Any, Callable[..., int]] | None = None
) -> dict[Any, int]:
    """Return operator -> operations of a call. A multiply-add takes two.

    The counter does not know the fused attention of CPUs, so attention runs as plain matrix products.
    """
    counter = FlopCounterMode(display=False, custom_mapping=dict(formulas or {}))
    with sdpa_kernel(SDPBackend.MATH), counter:
        call()
    return dict(counter.get_flop_counts()["Global"])


@torch.no_grad()
def counted_step(config: CoreConfig, width: int, num_inputs: int) -> CountedStep:
    """Count a step of a core with random weights."""
    core = config.build(width, num_inputs).eval()
    state = core.initial_state(1)
    step = partial(core.step, torch.zeros(1, num_inputs, width), state)
    return CountedStep(
        multiply_adds=sum(counted_flops(step).values()) // 2,
        operations=sum(counted_flops(step, ELEMENTWISE).values()) // 2,
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


def bytes_for_backward(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Return the bytes of the storages that autograd keeps after `forward`, each counted once.

    besides: parameters and inputs, which exist anyway and do not count.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        # The storage is held, so that no other tensor can get its address.
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage

    def unpack(packed: object) -> Tensor:
        raise AssertionError  # nothing runs backward

    with saved_tensors_hooks(pack, unpack):
        forward()
    for tensor in besides:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())
