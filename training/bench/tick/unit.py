"""The unit of the Token Turing Machine at the paper's robot setting: how long a tick takes, and whether that lasts."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ttm.policy.cores.causal_transformer import CausalTransformer
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm.machine import TokenTuringConfig, TokenTuringUnit, build_unit
from ttm.policy.run.engine import Precision
from ttm.policy.run.openvino_engine import CompiledModule, supported_precisions
from ttm.training.bench.tick.plain_unit import PlainUnit
from ttm.training.bench.timing import BLOCK, interleaved, repeated, resident_mb

WIDTH, NUM_INPUTS = 512, 48
"""D and N."""
UNIT = TokenTuringConfig(
    memory_size=96,
    process_size=16,
    num_layers=8,
    num_heads=8,
    mlp_size=512,
    positional_embedding=False,
)
MLP_SIZES = (512, 2048)
COMPARED_TICKS = 50
EAGER = "plain eager"
BAR_RATIO = {"float32": 0.55, "bfloat16": 0.35}
"""Precision -> what its tick may take of plain eager's."""

UnitCall = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Memory (1, m, D) and inputs (1, N, D) -> new memory and outputs."""


@dataclass(frozen=True)
class UnitRow:
    """One way to run the unit."""

    mlp_size: int
    how: str
    median_ms: float
    ratio: float
    """To plain eager PyTorch, of the medians."""
    error: float
    """The largest difference of an output from plain eager's, over 50 ticks of which each has its own memory."""
    load_s: float


@dataclass(frozen=True)
class FlatRow:
    """One thing run for a long time."""

    what: str
    early: tuple[int, int]
    """First tick, and first tick no more."""
    late: tuple[int, int]
    early_ms: float
    """Median of the ticks `early`."""
    late_ms: float
    early_mb: float | None
    """Resident memory after the ticks `early`; None where the system does not say."""
    late_mb: float | None


@torch.inference_mode()
def measure_unit(mlp_size: int, blocks: int) -> list[UnitRow]:
    """Plain eager PyTorch, and ours in every precision, by turns in one run."""
    unit, config = unit_of(mlp_size)
    plain = PlainUnit(WIDTH, config).eval()
    plain.copy_weights(unit)
    calls: dict[str, UnitCall] = {EAGER: plain}
    load_s = {EAGER: 0.0}
    for precision in supported_precisions():
        begun = time.perf_counter()
        calls[precision] = compiled_unit(unit, precision)
        load_s[precision] = time.perf_counter() - begun
    memory, inputs = torch.randn(1, config.memory_size, WIDTH), torch.randn(1, NUM_INPUTS, WIDTH)
    times = interleaved({how: partial(call, memory, inputs) for how, call in calls.items()}, blocks)
    median_ms = {how: float(np.median(taken)) * 1e3 for how, taken in times.items()}
    expected = unit_outputs(plain)
    return [
        UnitRow(
            mlp_size=mlp_size,
            how=how,
            median_ms=median_ms[how],
            ratio=median_ms[how] / median_ms[EAGER],
            error=float((unit_outputs(call) - expected).abs().max()),
            load_s=load_s[how],
        )
        for how, call in calls.items()
    ]


def unit_of(mlp_size: int) -> tuple[TokenTuringUnit, TokenTuringConfig]:
    """The unit with random weights, the same every time."""
    config = replace(UNIT, mlp_size=mlp_size)
    torch.manual_seed(0)
    return build_unit(WIDTH, NUM_INPUTS, config).eval(), config


def compiled_unit(unit: TokenTuringUnit, precision: Precision) -> CompiledModule:
    """Ours, as the engine on a CPU runs it."""
    example = [torch.zeros(1, UNIT.memory_size, WIDTH), torch.zeros(1, NUM_INPUTS, WIDTH)]
    return CompiledModule(copy.deepcopy(unit), example, precision=precision)


def unit_outputs(call: UnitCall) -> Tensor:
    """(50, r, D) of an episode of noise, from an empty memory."""
    generator = torch.Generator().manual_seed(1)
    memory, outputs = torch.zeros(1, UNIT.memory_size, WIDTH), []
    for _ in range(COMPARED_TICKS):
        memory, output = call(memory, torch.randn(1, NUM_INPUTS, WIDTH, generator=generator))
        outputs.append(output)
    return torch.cat(outputs)


@torch.inference_mode()
def run_long(what: str, begin: Callable[[], Callable[[], object]], ticks: int) -> FlatRow:
    """Early is the second hundredth of an episode's ticks, late the last: of 10,000, 100 to 200 and 9,900 to 10,000.

    begin: an episode's start -> its tick. A second episode begins when the first is near its end, and the two take
    turns: a machine that gets slower in the meantime does so for both.
    """
    part = max(ticks // 100, BLOCK)
    old = begin()
    repeated(old, 2 * part)
    early_mb = resident_mb()
    repeated(old, ticks - 3 * part)
    late_mb = resident_mb()
    young = begin()
    repeated(young, part)
    times = interleaved({"early": young, "late": old}, part // BLOCK)
    early_ms, late_ms = (float(np.median(times[name])) * 1e3 for name in ("early", "late"))
    return FlatRow(
        what, (part, 2 * part), (ticks - part, ticks), early_ms, late_ms, early_mb, late_mb
    )


def unit_loop() -> Callable[[], object]:
    """A tick of the unit that goes on from the memory of the last."""
    unit, config = unit_of(UNIT.mlp_size)
    call, inputs = compiled_unit(unit, "float32"), torch.randn(1, NUM_INPUTS, WIDTH)
    memory = torch.zeros(1, config.memory_size, WIDTH)

    def tick() -> None:
        nonlocal memory
        memory, _ = call(memory, inputs)

    return tick


def growing_loop() -> Callable[[], object]:
    """A tick of a causal Transformer of the unit's sizes that keeps every key and value, in PyTorch."""
    core = sized_like("transformer", UNIT).build(WIDTH, NUM_INPUTS).eval()
    assert isinstance(core, CausalTransformer)
    cache, inputs = core.empty_cache(1), torch.randn(1, 1, NUM_INPUTS, WIDTH)

    def tick() -> None:
        nonlocal cache
        _, cache = core.extend(inputs, cache)

    return tick
