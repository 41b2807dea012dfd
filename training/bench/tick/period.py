"""Ticks of the cores that do something every k-th tick: whether those take longer, and whether late ticks do.

The Temporal Latent Bottleneck changes its latents at a chunk's end, Hourglass has a new coarse element at every k-th
tick. Both work it out at every tick and take it when it is due, so that all ticks should cost the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.tlb.temporal_latent_bottleneck import TemporalLatentBottleneckConfig
from ttm.policy.run.openvino_engine import CompiledModule
from ttm.policy.run.tick import CoreTick
from ttm.training.bench.timing import BLOCK, cpu_threads, interleaved, repeated

WIDTH = 128
LATENTS = TemporalLatentBottleneckConfig(process_size=1, num_latents=10, chunk_size=10)
HOURGLASS = HourglassConfig(process_size=1)

CoreCall = Callable[..., Sequence[Tensor]]
"""Tokens and state -> outputs and state."""


@dataclass(frozen=True)
class Periodic:
    """A core, and which of its ticks may differ."""

    config: CoreConfig
    period: int
    turn: int
    """Ticks t with t mod period of this."""


PERIODIC: Mapping[str, Periodic] = MappingProxyType(
    {
        "tlb": Periodic(LATENTS, LATENTS.chunk_size, LATENTS.chunk_size - 1),
        "hourglass": Periodic(HOURGLASS, parse_hierarchy(HOURGLASS.hierarchy).period, 0),
    }
)


@dataclass(frozen=True)
class PeriodRow:
    """One core, run in one way on one thread. Medians."""

    what: str
    how: str
    ticks: int
    """Of the episode. Early are those of its first quarter, late those of its last."""
    early_ms: float
    late_ms: float
    turn_ms: float
    """Of the ticks at which something new is taken: a chunk's end, a coarse element's tick."""
    other_ms: float


def measure_periods(ticks: int) -> list[PeriodRow]:
    """Both cores, by PyTorch and by OpenVINO; what one thread of one core takes."""
    with cpu_threads(1):
        return [row for what in PERIODIC for row in _measure(what, ticks)]


@torch.inference_mode()
def _measure(what: str, ticks: int) -> list[PeriodRow]:
    torch.manual_seed(0)
    periodic = PERIODIC[what]
    core = periodic.config.build(WIDTH, num_inputs=1).eval()
    state = core.initial_state(1)
    eager = CoreTick(core, tuple(state))
    example = [torch.randn(1, 1, WIDTH), *state.values()]
    calls: dict[str, CoreCall] = {
        "PyTorch": eager,
        "OpenVINO": CompiledModule(copy.deepcopy(eager), example, threads=1),
    }
    return [_row(what, how, call, example, ticks) for how, call in calls.items()]


def _row(what: str, how: str, call: CoreCall, example: Sequence[Tensor], ticks: int) -> PeriodRow:
    """The old episode goes on while a young one begins, by turns; then the old one alone, by tick of the period."""
    periodic, quarter = PERIODIC[what], ticks // 4
    old, young = _loop(call, example), _loop(call, example)
    repeated(old, ticks - quarter)
    times = interleaved({"early": young, "late": old}, quarter // BLOCK)
    taken = ticks - quarter + quarter // BLOCK * BLOCK
    repeated(old, -taken % periodic.period)  # to a period's start
    by_place = repeated(old, ticks // periodic.period * periodic.period).reshape(
        -1, periodic.period
    )
    return PeriodRow(
        what=what,
        how=how,
        ticks=ticks,
        early_ms=float(np.median(times["early"])) * 1e3,
        late_ms=float(np.median(times["late"])) * 1e3,
        turn_ms=float(np.median(by_place[:, periodic.turn])) * 1e3,
        other_ms=float(np.median(np.delete(by_place, periodic.turn, axis=1))) * 1e3,
    )


def _loop(call: CoreCall, example: Sequence[Tensor]) -> Callable[[], object]:
    """A tick that goes on from the state of the last."""
    tokens, *values = example

    def tick() -> None:
        nonlocal values
        _, *values = call(tokens, *values)

    return tick
