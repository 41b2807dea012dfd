"""The cost of long sequences: of a training pass, and of a control tick late in an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttm.policy.cores.temporal_core import CoreState, TemporalCore
from ttm.training.bench.sequence.models import Contender
from ttm.training.bench.sequence.saved_for_backward import bytes_for_backward
from ttm.training.bench.timing import interleaved, median_ms
from ttm.training.common.progress import print_progress


@dataclass(frozen=True)
class CostSizes:
    """The sizes of what runs, and how often it is timed."""

    width: int
    ticks: int
    """T: the length of the sequence, and the number of ticks before a tick is timed."""
    batch: int
    """B, sequences of a training pass."""
    rounds: int
    """Number of training passes of each model that are timed."""
    tick_blocks: int
    """Blocks of ticks of each model that are timed; 0 for none."""
    device: str = "cpu"


@dataclass(frozen=True)
class CostRow:
    """The cost of one model, in absolute figures."""

    name: str
    layers: str
    parameters: int
    linear_cost: float | None
    """Cost by Hourglass's linear model, in layers at full length."""
    train_ms: float
    """Median of a forward and a backward pass."""
    kept_mb: float
    """What the forward pass keeps for the backward pass; counted."""
    kept_with_scores_mb: float
    """The same if attention keeps every score, as it did before fused kernels recomputed them."""
    peak_mb: float | None
    """On a GPU: the most memory allocated during both passes, in addition to that before them."""
    tick_ms: float | None
    """Median of a tick after T ticks, at batch 1."""
    state_floats: int
    """Number of values that are carried to that tick."""


def measure_cost(models: Sequence[Contender], sizes: CostSizes) -> list[CostRow]:
    """Measure all models in turns. Their weights are random, and the same in every call."""
    cores = {model.name: _build(model, sizes) for model in models}
    passes = {name: training_pass(core, sizes) for name, core in cores.items()}
    states = {name: late_state(core, sizes) for name, core in cores.items()}
    print_progress(f"cost: {len(cores)} models of {sizes.ticks} ticks")
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
            train_ms=median_ms(train[model.name]),
            kept_mb=kept_bytes(cores[model.name], sizes) / 1e6,
            kept_with_scores_mb=kept_with_scores(cores[model.name], sizes) / 1e6,
            peak_mb=_peak_mb(passes[model.name], sizes),
            tick_ms=median_ms(ticked[model.name]) if sizes.tick_blocks else None,
            state_floats=sum(
                v.numel() for v in states[model.name].values() if v.is_floating_point()
            ),
        )
        for model in models
    ]


def training_pass(core: TemporalCore, sizes: CostSizes) -> Callable[[], object]:
    """Return a function that runs T ticks of random inputs forward and backward, from an empty memory."""
    tokens = _random_tokens(sizes)
    towards = torch.randn(
        sizes.batch, sizes.ticks, core.num_outputs, sizes.width, device=sizes.device
    )

    def run() -> None:
        core.zero_grad()
        core(tokens)[0].backward(towards)

    return _synchronized(run, sizes)


def control_tick(core: TemporalCore, state: CoreState, sizes: CostSizes) -> Callable[[], object]:
    """Return a function that runs one tick after `state`.

    Every call starts from the same state, since that of the plain Transformer would grow during the
    timing.
    """
    now = torch.randn(1, 1, sizes.width, device=sizes.device)
    return _synchronized(lambda: core.step(now, state), sizes)


def kept_bytes(core: TemporalCore, sizes: CostSizes) -> int:
    """Return what the forward pass keeps for the backward pass, weights and inputs left out."""
    tokens = _random_tokens(sizes)
    return bytes_for_backward(
        lambda: core(tokens), besides=chain([tokens], core.parameters(), core.buffers())
    )


def kept_with_scores(core: TemporalCore, sizes: CostSizes) -> int:
    """Return `kept_bytes` with attention as plain matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        return kept_bytes(core, sizes)


@torch.inference_mode()
def late_state(core: TemporalCore, sizes: CostSizes) -> CoreState:
    """Return the state after T ticks, at batch 1."""
    state: CoreState = core(_random_tokens(sizes)[:1])[1]
    return state


def _build(model: Contender, sizes: CostSizes) -> TemporalCore:
    torch.manual_seed(0)
    return model.config.build(sizes.width, num_inputs=1).to(sizes.device)


def _random_tokens(sizes: CostSizes) -> Tensor:
    """Return random tokens, (B, T, 1, D)."""
    return torch.randn(sizes.batch, sizes.ticks, 1, sizes.width, device=sizes.device)


def _synchronized(call: Callable[[], object], sizes: CostSizes) -> Callable[[], object]:
    """Return `call` extended to wait for the GPU, which would only queue the work."""
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
