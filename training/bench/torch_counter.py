"""The cost of one step of a temporal core, measured by PyTorch's FLOP counter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy.cores.temporal_core import CoreConfig


@dataclass(frozen=True)
class CountedStep:
    """One step at batch 1."""

    multiply_adds: int
    """Multiply-adds of matrix products. The counter sees nothing else."""
    state_values: int
    """Number of values that the core carries from tick to tick."""
    parameters: int


def counted_step(config: CoreConfig, width: int, num_inputs: int) -> CountedStep:
    """Count a step, which runs on the meta device: shapes without memory or time.

    The counter knows matrix products, convolutions and some of the fused attention kernels, but not
    the one for CPUs. Attention therefore runs as plain matrix products here (`SDPBackend.MATH`). The
    counter takes two for a multiply-add, and nothing for element-wise work.
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
        parameters=sum(parameter.numel() for parameter in core.parameters()),
    )
