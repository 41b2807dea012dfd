"""`ttm bench sequence`: the cost of long sequences.

The Temporal Latent Bottleneck (TLB, by chunk size) and Hourglass (by hierarchy) beside a causal
Transformer that has no window. The cost is the counterpart of table 5 of the TLB paper (Didolkar et al.
2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttm.policy.cores.baselines import CausalTransformer, CausalTransformerConfig
from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import options, require_at_least
from ttm.training.bench.common import (
    BenchCommand,
    Cell,
    Figures,
    Report,
    decimals,
    interleaved,
    median_ms,
    num_parameters,
)
from ttm.training.console import print_progress

PLAIN = "plain Transformer"
LAYERS = 8
"""Of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
CROSS_EVERY, NUM_LATENTS = 4, 16
"""R and N of the Temporal Latent Bottleneck, which attends to its latents after every R-th layer."""
WINDOW = 64
"""Number of elements, of its own scale, that each attention of Hourglass sees."""
NUM_HEADS, MLP_FACTOR = 4, 4
"""Heads, and the hidden width of the MLPs as a multiple of the width."""


@dataclass(frozen=True)
class Sizes:
    """What is compared, and at which sizes. There is one token a tick."""

    width: int
    ticks: int
    """T: the length of the sequences, and the number of ticks before a tick is timed."""
    batch: int
    """B, sequences of a training pass."""
    chunk_sizes: tuple[int, ...]
    """K of the Temporal Latent Bottleneck."""
    hierarchies: tuple[str, ...]
    """Of Hourglass, each as layers@scale from the input to the output."""


NESTED = "2@1 1@2 4@4 1@2 2@1"
FLAT = ("8@1", "1@1 6@2 1@1")
COST = Sizes(
    128, 512, 2, (4, 8, 16, 32, 64), (*FLAT, "2@1 4@2 2@1", "2@1 4@4 2@1", "2@1 8@4 2@1", NESTED)
)
ROUNDS, TICK_BLOCKS = 5, 10
"""Training passes of each model that are timed, and blocks of 10 ticks."""

COST_NOTES = """\
Figures of the plain Transformer: {plain}.

  time     median of a forward and a backward pass, timed in turns with the other models.
  memory   what the forward pass keeps for the backward pass; attention recomputes its scores there.
  scores   the same if attention keeps its scores, as it did when the papers were written.
  tick     a control tick at batch 1 after all ticks, with PyTorch.
  state    floats carried from tick to tick; that of the plain Transformer grows with every tick.
  linear   Hourglass's linear cost model: layers at full length. It leaves out attention itself.

All have the same heads, MLPs and tokens. Layers are self-attention + cross-attention to the latents for
TLB, and the sum over all scales for Hourglass, whose attention resamples and sees a window of its scale.
"""


@dataclass(frozen=True)
class PlainTransformerConfig(CausalTransformerConfig):
    """The sizes of the Transformer; `window` has no effect."""

    def build(self, width: int, num_inputs: int) -> PlainTransformer:
        return PlainTransformer(width, num_inputs, self)


class PlainTransformer(CausalTransformer):
    """Tokens attend to all ticks before them: the cache of keys and values grows with every tick."""

    def initial_state(self, batch_size: int) -> CoreState:
        return self.empty_cache(batch_size)

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; the new state is T ticks longer."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        return self.extend(tokens, state, episode_start)


@dataclass(frozen=True)
class Contender:
    """One model."""

    name: str
    config: CoreConfig
    layers: str
    """Number of layers as text: self-attention + cross-attention, or the sum over all scales."""
    linear_cost: float | None = None
    """Cost by Hourglass's linear model, in layers at full length."""


def contenders(sizes: Sizes) -> list[Contender]:
    """Return the plain Transformer, then all chunk sizes, then all hierarchies."""
    # Positions of Hourglass are rotary as in the plain Transformer, so that they make no difference.
    common: dict[str, Any] = {"process_size": 1, "num_heads": NUM_HEADS}
    common["mlp_size"] = MLP_FACTOR * sizes.width
    latents = {"cross_every": CROSS_EVERY, "num_latents": NUM_LATENTS, **common}
    windowed = {"window": WINDOW, "position": "rotary", **common}
    plain = PlainTransformerConfig(num_layers=LAYERS, **common)
    found = [Contender(PLAIN, plain, str(LAYERS), float(LAYERS))]
    for chunk_size in sizes.chunk_sizes:
        tlb = TemporalLatentBottleneckConfig(num_layers=LAYERS, chunk_size=chunk_size, **latents)
        layers = f"{LAYERS}+{LAYERS // CROSS_EVERY}"
        found.append(Contender(f"TLB, K = {chunk_size}", tlb, layers))
    for text in sizes.hierarchies:
        config, hierarchy = HourglassConfig(hierarchy=text, **windowed), parse_hierarchy(text)
        layers = str(sum(stage.before + stage.after for stage in hierarchy.stages))
        found.append(Contender(text, config, layers, float(hierarchy.linear_cost)))
    return found


def measure_cost(sizes: Sizes) -> list[Figures]:
    """Measure all models in turns. Their weights are random, and the same in every call.

    In the rows, `train_ms` is the median of a forward and a backward pass; `kept_mb` what the forward
    pass keeps for it, and `kept_with_scores_mb` the same if attention keeps every score; `tick_ms` the
    median of a tick after T ticks, at batch 1, and `state_floats` the values that are carried to it.
    """
    models = contenders(sizes)
    print_progress(f"cost: {len(models)} models of {sizes.ticks} ticks")
    cores, passes, states, ticks = {}, {}, {}, {}
    for model in models:
        torch.manual_seed(0)
        core = model.config.build(sizes.width, num_inputs=1)
        quicker_on_cpu(core)
        cores[model.name], passes[model.name] = core, training_pass(core, sizes)
    for name, core in cores.items():
        states[name] = late_state(core, sizes)
        # Always from the same state, since that of the plain Transformer would grow.
        ticks[name] = partial(core.step, random_tokens(sizes)[:1, 0], states[name])
    train = interleaved(passes, ROUNDS, block=2, dropped=1)
    with torch.inference_mode():
        ticked = interleaved(ticks, TICK_BLOCKS)
    rows = []
    for model in models:
        name, core, state = model.name, cores[model.name], states[model.name]
        rows.append(
            {
                "name": name,
                "layers": model.layers,
                "parameters": num_parameters(core),
                "linear_cost": model.linear_cost,
                "train_ms": median_ms(train[name]),
                "kept_mb": kept_bytes(core, sizes) / 1e6,
                "kept_with_scores_mb": kept_bytes(core, sizes, with_scores=True) / 1e6,
                "tick_ms": median_ms(ticked[name]),
                "state_floats": sum(v.numel() for v in state.values() if v.is_floating_point()),
            }
        )
    return rows


def training_pass(core: TemporalCore, sizes: Sizes) -> Callable[[], object]:
    """Return a function that runs T ticks of random inputs forward and backward, from an empty memory."""
    tokens = random_tokens(sizes)
    towards = torch.randn(sizes.batch, sizes.ticks, core.num_outputs, sizes.width)

    def run() -> None:
        core.zero_grad()
        core(tokens)[0].backward(towards)

    return run


@torch.inference_mode()
def late_state(core: TemporalCore, sizes: Sizes) -> CoreState:
    """Return the state after T ticks, at batch 1."""
    return core(random_tokens(sizes)[:1])[1]


def random_tokens(sizes: Sizes) -> Tensor:
    """Return random tokens, (B, T, 1, D)."""
    return torch.randn(sizes.batch, sizes.ticks, 1, sizes.width)


def kept_bytes(core: TemporalCore, sizes: Sizes, with_scores: bool = False) -> int:
    """Return what the forward pass keeps for the backward pass, weights and inputs left out.

    with_scores: attention runs as plain matrix products, and keeps its scores.
    """
    tokens = random_tokens(sizes)
    besides = [tokens, *core.parameters(), *core.buffers()]
    with sdpa_kernel(SDPBackend.MATH) if with_scores else nullcontext():
        return bytes_for_backward(lambda: core(tokens), besides)


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


@dataclass(frozen=True)
class BenchSequenceCommand(BenchCommand):
    """Compare the cost of long sequences: TLB by chunk size, Hourglass by hierarchy.

    All figures are ratios to a plain Transformer in the same run, which is causal and has no window: time
    and memory of a training pass, time and state of a control tick late in an episode; the counterpart of
    table 5 of the TLB paper. Takes two minutes. Run it while nothing else runs.
    """

    threads: int = 1
    """CPU threads."""

    def measure(self, report: Report) -> None:
        """Measure the cost."""
        require_at_least(1, options(self, "threads"))
        report.figures["cost_sizes"] = asdict(COST)
        with cpu_threads(self.threads):
            rows = measure_cost(COST)
        title = (
            f"{COST.ticks} ticks, batch {COST.batch}, width {COST.width}, one token a tick: "
            "ratios to the plain Transformer"
        )
        notes = COST_NOTES.format(plain=in_words(rows[0]))
        report.rows("cost", title, columns_beside(rows[0]), rows, notes)


def columns_beside(plain: Figures) -> dict[str, Cell]:
    """Return the columns of the table, with ratios to the plain Transformer."""

    def ratio(field: str, digits: int = 2) -> Cell:
        return lambda row: decimals(row[field] and row[field] / plain[field], digits)

    return {
        "model": "{name}",
        "layers": "{layers}",
        "params\n(k)": lambda row: f"{row['parameters'] / 1e3:,.0f}",
        "time": ratio("train_ms"),
        "memory": ratio("kept_mb"),
        "scores": ratio("kept_with_scores_mb"),
        "tick": ratio("tick_ms"),
        "state": ratio("state_floats", digits=3),
        "linear": ratio("linear_cost"),
    }


def in_words(plain: Figures) -> str:
    """Return the absolute figures to which the ratios refer."""
    return (
        "{train_ms:.0f} ms, {kept_mb:.1f} MB, {kept_with_scores_mb:.1f} MB with scores, a tick "
        "{tick_ms:.2f} ms, state {state_floats:,} floats"
    ).format(**plain)
