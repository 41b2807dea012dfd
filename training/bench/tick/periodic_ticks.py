"""Whether every k-th tick, at which the state of some cores changes more, takes longer than the others.

The Temporal Latent Bottleneck changes its latents at the end of a chunk, and Hourglass gets a new
coarse element at every k-th tick. Both compute these at every tick and take them when they are due,
so that all ticks should take equally long, late ones included.
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
from ttm.policy.run.openvino_module import CompiledModule
from ttm.policy.run.threads import cpu_threads
from ttm.policy.run.tick_module import CoreTickModule
from ttm.training.bench.timing import BLOCK, interleaved, median_ms, repeated

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
    """The ticks t with t mod `period` equal to this may differ."""


PERIODIC: Mapping[str, Periodic] = MappingProxyType(
    {
        "tlb": Periodic(LATENTS, LATENTS.chunk_size, LATENTS.chunk_size - 1),
        "hourglass": Periodic(HOURGLASS, parse_hierarchy(HOURGLASS.hierarchy).period, 0),
    }
)


@dataclass(frozen=True)
class PeriodRow:
    """One core, run in one way on one thread. All times are medians."""

    what: str
    how: str
    ticks: int
    """Length of the episode. Early ticks are those of its first quarter, late ticks those of its last."""
    early_ms: float
    late_ms: float
    turn_ms: float
    """The ticks at which the state takes something new: the end of a chunk, or a new coarse element."""
    other_ms: float
    """All other ticks."""


def measure_periods(ticks: int) -> list[PeriodRow]:
    """Time both cores with PyTorch and with OpenVINO on one thread. ticks: length of the episode."""
    with cpu_threads(1):
        return [row for what in PERIODIC for row in _measure(what, ticks)]


@torch.inference_mode()
def _measure(what: str, ticks: int) -> list[PeriodRow]:
    torch.manual_seed(0)
    periodic = PERIODIC[what]
    core = periodic.config.build(WIDTH, num_inputs=1).eval()
    state = core.initial_state(1)
    eager = CoreTickModule(core, tuple(state))
    example = [torch.randn(1, 1, WIDTH), *state.values()]
    calls: dict[str, CoreCall] = {
        "PyTorch": eager,
        "OpenVINO": CompiledModule(copy.deepcopy(eager), example, threads=1),
    }
    return [_row(what, how, call, example, ticks) for how, call in calls.items()]


def _row(what: str, how: str, call: CoreCall, example: Sequence[Tensor], ticks: int) -> PeriodRow:
    """Time an old and a young episode in turns, then the old one alone by the phase of its ticks."""
    periodic, quarter = PERIODIC[what], ticks // 4
    old, young = _loop(call, example), _loop(call, example)
    repeated(old, ticks - quarter)
    times = interleaved({"early": young, "late": old}, quarter // BLOCK)
    taken = ticks - quarter + quarter // BLOCK * BLOCK
    repeated(old, -taken % periodic.period)  # to the start of a period
    whole_periods = ticks // periodic.period * periodic.period
    by_phase = repeated(old, whole_periods).reshape(-1, periodic.period)
    return PeriodRow(
        what=what,
        how=how,
        ticks=ticks,
        early_ms=median_ms(times["early"]),
        late_ms=median_ms(times["late"]),
        turn_ms=median_ms(by_phase[:, periodic.turn]),
        other_ms=median_ms(np.delete(by_phase, periodic.turn, axis=1)),
    )


def _loop(call: CoreCall, example: Sequence[Tensor]) -> Callable[[], object]:
    """Return a tick that continues from the state of the tick before."""
    tokens, *values = example

    def tick() -> None:
        nonlocal values
        _, *values = call(tokens, *values)

    return tick
