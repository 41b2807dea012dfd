"""The time of a tick of every temporal core by itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from ttm.policy.cores import registry
from ttm.policy.cores.configs import sized_like
from ttm.policy.network.config import PresetName
from ttm.policy.run.openvino_module import CompiledModule
from ttm.policy.run.tick_module import CoreTickModule
from ttm.training.bench.tick.preset_policy import preset_policy
from ttm.training.bench.timing import interleaved, median_ms

COMPARED_TICKS = 20


@dataclass(frozen=True)
class CoreRow:
    """One kind of core by itself."""

    kind: str
    parameters: int
    state_values: int
    torch_ms: float
    """Median of eager PyTorch."""
    median_ms: float
    """Median of OpenVINO in float32."""
    error: float
    """The largest difference of the two over 20 ticks."""


def measure_cores(blocks: int) -> list[CoreRow]:
    """Measure every kind of core. blocks: see `interleaved`."""
    return [measure_core(kind, blocks) for kind in registry.CORES]


@torch.inference_mode()
def measure_core(kind: str, blocks: int, preset: PresetName = "tiny") -> CoreRow:
    """Time one tick of a core at the preset's sizes, eager PyTorch and OpenVINO in turns."""
    policy = preset_policy(preset)
    config, num_inputs = policy.config, policy.num_tokens
    torch.manual_seed(0)
    core = sized_like(kind, config.core).build(config.width, num_inputs).eval()
    state = core.initial_state(1)
    eager = CoreTickModule(core, tuple(state))
    tensors = [torch.randn(1, num_inputs, config.width), *state.values()]
    compiled = CompiledModule(copy.deepcopy(eager), tensors)
    times = interleaved(
        {"torch": lambda: eager(*tensors), "ours": lambda: compiled(*tensors)}, blocks
    )
    error, values, others = 0.0, tensors[1:], tensors[1:]
    for _ in range(COMPARED_TICKS):
        tokens = torch.randn_like(tensors[0])
        (expected, *values), (output, *others) = eager(tokens, *values), compiled(tokens, *others)
        error = max(error, float((output - expected).abs().max()))
    return CoreRow(
        kind=kind,
        parameters=sum(parameter.numel() for parameter in core.parameters()),
        state_values=sum(value.numel() for value in state.values()),
        torch_ms=median_ms(times["torch"]),
        median_ms=median_ms(times["ours"]),
        error=error,
    )
