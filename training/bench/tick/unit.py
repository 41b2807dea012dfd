"""The time of the unit of the Token Turing Machine, at the paper's robot setting, against plain PyTorch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.ttm.unit import TokenTuringUnit, build_unit
from ttm.policy.run.engine_options import Precision
from ttm.policy.run.openvino_module import CompiledModule, supported_precisions
from ttm.training.bench.tick.plain_unit import PlainUnit
from ttm.training.bench.timing import interleaved, median_ms

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
"""Precision -> the project's bar for the time of a tick, relative to plain eager PyTorch."""

UnitCall = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Memory (1, m, D) and inputs (1, N, D) -> new memory and outputs."""


@dataclass(frozen=True)
class UnitRow:
    """One way to run the unit."""

    mlp_size: int
    how: str
    median_ms: float
    ratio: float
    """The median over that of plain eager PyTorch."""
    error: float
    """The largest difference of an output from plain eager's over 50 ticks; each carries its own memory."""
    load_s: float


def measure_units(blocks: int) -> list[UnitRow]:
    """Measure the unit with each size of the MLPs. blocks: see `interleaved`."""
    return [row for size in MLP_SIZES for row in measure_unit(size, blocks)]


@torch.inference_mode()
def measure_unit(mlp_size: int, blocks: int) -> list[UnitRow]:
    """Time plain eager PyTorch, and the compiled unit in every precision, in turns in one run."""
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
    medians = {how: median_ms(taken) for how, taken in times.items()}
    expected = unit_outputs(plain)
    return [
        UnitRow(
            mlp_size=mlp_size,
            how=how,
            median_ms=medians[how],
            ratio=medians[how] / medians[EAGER],
            error=float((unit_outputs(call) - expected).abs().max()),
            load_s=load_s[how],
        )
        for how, call in calls.items()
    ]


def unit_of(mlp_size: int) -> tuple[TokenTuringUnit, TokenTuringConfig]:
    """Return the unit, with the same random weights in every call, and its configuration."""
    config = replace(UNIT, mlp_size=mlp_size)
    torch.manual_seed(0)
    return build_unit(WIDTH, NUM_INPUTS, config).eval(), config


def compiled_unit(unit: TokenTuringUnit, precision: Precision) -> CompiledModule:
    """Return `unit` as the OpenVINO engine runs it."""
    example = [torch.zeros(1, UNIT.memory_size, WIDTH), torch.zeros(1, NUM_INPUTS, WIDTH)]
    return CompiledModule(copy.deepcopy(unit), example, precision=precision)


def unit_outputs(call: UnitCall) -> Tensor:
    """Return the outputs (50, r, D) of an episode of random inputs, from an empty memory."""
    generator = torch.Generator().manual_seed(1)
    memory, outputs = torch.zeros(1, UNIT.memory_size, WIDTH), []
    for _ in range(COMPARED_TICKS):
        memory, output = call(memory, torch.randn(1, NUM_INPUTS, WIDTH, generator=generator))
        outputs.append(output)
    return torch.cat(outputs)
