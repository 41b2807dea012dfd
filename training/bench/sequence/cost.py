"""What long sequences cost: time and memory of a training pass, and of a control tick late in an episode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttm.policy.cores.temporal_core import CoreState, TemporalCore
from ttm.training.bench.sequence.models import Contender
from ttm.training.bench.sequence.saved_memory import kept_for_backward
from ttm.training.bench.timing import interleaved


@dataclass(frozen=True)
class CostSizes:
    """How much is run, and how often."""

    width: int
    ticks: int
    """T, of the sequence; a control tick is timed after as many."""
    batch: int
    """B, sequences of a training pass."""
    rounds: int
    """Of the training passes' timing: as many passes of each count."""
    tick_blocks: int
    """Of the ticks' timing, of 8 that count; 0 for none."""
    device: str = "cpu"


@dataclass(frozen=True)
class CostRow:
    """One model's cost, absolute."""

    name: str
    layers: str
    parameters: int
    linear_cost: float | None
    """By Hourglass's model, in layers at full length."""
    train_ms: float
    """Median of a forward and a backward pass."""
    kept_mb: float
    """What the forward pass keeps for the backward pass; counted."""
    kept_with_scores_mb: float
    """The same where attention keeps every score, as before there was attention that works them out again."""
    peak_mb: float | None
    """On a GPU: the most memory allocated during both passes, beyond what was before."""
    tick_ms: float | None
    """Median of a tick after T ticks, at batch 1."""
    state_floats: int
    """What is carried to that tick."""


def measure_cost(models: Sequence[Contender], sizes: CostSizes) -> list[CostRow]:
    """All models by turns. Weights are random, the same every time."""
    cores = {model.name: _build(model, sizes) for model in models}
    passes = {name: training_pass(core, sizes) for name, core in cores.items()}
    states = {name: late_state(core, sizes) for name, core in cores.items()}
    print(f"cost: {len(cores)} models of {sizes.ticks} ticks", file=sys.stderr, flush=True)
    train = interleaved(passes, sizes.rounds, block=2, dropped=1)
    ticks = {name: control_tick(core, states[name], sizes) for name, core in cores.items()}
    with torch.inference_mode():
        ticked = interleaved(ticks, sizes.tick_blocks)
    return [
        CostRow(
            name=model.name,
            layers=model.layers,
            parameters=sum(parameter.numel() for parameter in cores[model.name].parameters()),
            linear_cost=model.linear_cost,
            train_ms=float(np.median(train[model.name])) * 1e3,
            kept_mb=kept_bytes(cores[model.name], sizes) / 1e6,
            kept_with_scores_mb=kept_with_scores(cores[model.name], sizes) / 1e6,
            peak_mb=_peak_mb(passes[model.name], sizes),
            tick_ms=float(np.median(ticked[model.name])) * 1e3 if sizes.tick_blocks else None,
            state_floats=sum(
                v.numel() for v in states[model.name].values() if v.is_floating_point()
            ),
        )
        for model in models
    ]


def training_pass(core: TemporalCore, sizes: CostSizes) -> Callable[[], object]:
    """Forward and backward through T ticks of noise, from a memory that is empty."""
    tokens = _noise(sizes)
    towards = torch.randn(
        sizes.batch, sizes.ticks, core.num_outputs, sizes.width, device=sizes.device
    )

    def run() -> None:
        core.zero_grad()
        core(tokens)[0].backward(towards)

    return _waiting(run, sizes)


def control_tick(core: TemporalCore, state: CoreState, sizes: CostSizes) -> Callable[[], object]:
    """A tick after `state`, always the same: the plain Transformer's state would grow as it is timed."""
    now = torch.randn(1, 1, sizes.width, device=sizes.device)
    return _waiting(lambda: core.step(now, state), sizes)


def kept_bytes(core: TemporalCore, sizes: CostSizes) -> int:
    """What the forward pass of `training_pass` keeps for the backward pass, beside weights and inputs."""
    tokens = _noise(sizes)
    return kept_for_backward(
        lambda: core(tokens), besides=chain([tokens], core.parameters(), core.buffers())
    )


def kept_with_scores(core: TemporalCore, sizes: CostSizes) -> int:
    """`kept_bytes` with attention as plain matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        return kept_bytes(core, sizes)


@torch.inference_mode()
def late_state(core: TemporalCore, sizes: CostSizes) -> CoreState:
    """After T ticks, at batch 1."""
    state: CoreState = core(_noise(sizes)[:1])[1]
    return state


def _build(model: Contender, sizes: CostSizes) -> TemporalCore:
    torch.manual_seed(0)
    return model.config.build(sizes.width, num_inputs=1).to(sizes.device)


def _noise(sizes: CostSizes) -> Tensor:
    """(B, T, 1, D)."""
    return torch.randn(sizes.batch, sizes.ticks, 1, sizes.width, device=sizes.device)


def _waiting(call: Callable[[], object], sizes: CostSizes) -> Callable[[], object]:
    """`call`, until a GPU has done it; it would only be queued."""
    if sizes.device == "cpu":
        return call

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def _peak_mb(run: Callable[[], object], sizes: CostSizes) -> float | None:
    if sizes.device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 1e6
