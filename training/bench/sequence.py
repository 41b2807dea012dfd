"""Run the parts of `ttm bench sequence` that the options name, and report their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Literal

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.transformers import CausalTransformer, CausalTransformerConfig
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.training.bench.common import Report, decimals, interleaved, median_ms, rows_table
from ttm.training.console import print_progress
from ttm.training.sequence_model import SequenceModel, fit

# The options of `ttm bench sequence`.

Part = Literal["cost", "quality"]
HIERARCHY = "2@1 4@4 2@1"


@dataclass(frozen=True)
class SequenceOptions:
    """Which models are compared, and at which sizes."""

    parts: tuple[Part, ...] = ("cost", "quality")
    """What is measured."""
    chunk_sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    """K of the Temporal Latent Bottleneck."""
    hierarchies: tuple[str, ...] = (
        "8@1",
        "1@1 6@2 1@1",
        "2@1 4@2 2@1",
        HIERARCHY,
        "2@1 8@4 2@1",
        "2@1 1@2 4@4 1@2 2@1",
    )
    """Hierarchies of Hourglass, each in quotes: layers@scale from the input to the output."""
    layers: int = 8
    """Layers of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
    cross_every: int = 4
    """R: the Temporal Latent Bottleneck attends to its latents after every R-th layer."""
    num_latents: int = 16
    """N of the Temporal Latent Bottleneck."""
    window: int = 64
    """Number of elements, of its own scale, that each attention of Hourglass sees."""
    ticks: int = 512
    """T for the cost: the length of the sequences, and the number of ticks before a tick is timed."""
    batch: int = 2
    """Sequences of a training pass, for the cost."""
    width: int = 128
    """Channels of a token, for the cost."""
    rounds: int = 5
    """Number of training passes of each model that are timed."""
    tick_blocks: int = 10
    """Blocks of 10 ticks of each model that are timed; the first two ticks of a block do not count."""
    text_chunk_sizes: tuple[int, ...] = (8, 32)
    """K of the Temporal Latent Bottleneck, for the quality."""
    text_hierarchies: tuple[str, ...] = ("8@1", "1@1 6@2 1@1", HIERARCHY, "2@1 1@2 4@4 1@2 2@1")
    """Hierarchies of Hourglass, for the quality."""
    steps: int = 300
    """Steps of each training."""
    text_ticks: int = 128
    """Length of the sequences of the training, in bytes."""
    text_batch: int = 8
    """Sequences in a batch of the training."""
    text_width: int = 64
    """Channels of a token, for the quality."""
    learning_rate: float = 3e-3
    """Learning rate of Adam."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the trainings; each seed adds one training of every model, and a column."""
    threads: int = 1
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the models run."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "parts", "seeds"))
        require_at_least(1, options(self, "layers", "cross_every", "num_latents", "ticks", "batch"))
        require_at_least(1, options(self, "width", "rounds", "tick_blocks", "steps", "threads"))
        require_at_least(1, options(self, "text_ticks", "text_batch", "text_width"))
        require_above_0(options(self, "learning_rate"))
        for hierarchy in (*self.hierarchies, *self.text_hierarchies):
            parse_hierarchy(hierarchy)


# `ttm bench sequence`: compare the cost of long sequences, and the prediction of a text.


@dataclass(frozen=True)
class BenchSequenceCommand(SequenceOptions):
    """Compare the cost of long sequences: TLB by chunk size, Hourglass by hierarchy.

    All figures are ratios to a plain Transformer in the same run, which is causal and has no window.

    cost: time and memory of a training pass, time and state of a control tick late in an episode; the
    counterpart of table 5 of the TLB paper. Takes two minutes. quality: bits for each byte of a text
    after equal trainings, beside memory and time; the counterpart of figure 6 of the Hourglass paper,
    scaled down. Takes five minutes. Run them while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        run_bench(self)
        return 0


# A causal Transformer without a window, as the baseline for memories of bounded size.


@dataclass(frozen=True)
class PlainTransformerConfig(CausalTransformerConfig):
    """The sizes of the Transformer; `window` has no effect."""

    def build(self, width: int, num_inputs: int) -> PlainTransformer:
        """See `CoreConfig`."""
        return PlainTransformer(width, num_inputs, self)


class PlainTransformer(CausalTransformer):
    """Tokens attend to all ticks before them.

    The state is a cache of every key and value. It grows with every tick, and so does the cost of a
    tick.
    """

    def initial_state(self, batch_size: int) -> CoreState:
        """Return an empty cache."""
        return self.empty_cache(batch_size)

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; the new state is T ticks longer."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        return self.extend(tokens, state, episode_start)


# The models that `ttm bench sequence` compares: chunk sizes, hierarchies, a plain Transformer.

PLAIN = "plain Transformer"
MLP_FACTOR = 4
"""Hidden width of the MLPs as a multiple of the width."""


@dataclass(frozen=True)
class Choices:
    """The models that are compared, and the sizes that they share. There is one token a tick."""

    chunk_sizes: Sequence[int]
    """K of the Temporal Latent Bottleneck."""
    hierarchies: Sequence[str]
    """Hierarchies of Hourglass."""
    layers: int
    """Layers of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
    cross_every: int
    """R: the Temporal Latent Bottleneck attends to its latents after every R-th layer."""
    num_latents: int
    """N of the Temporal Latent Bottleneck."""
    window: int
    """Number of elements, of its own scale, that each attention of Hourglass sees."""
    num_heads: int = 4


@dataclass(frozen=True)
class Contender:
    """One model."""

    name: str
    config: CoreConfig
    layers: str
    """Number of layers as text: self-attention + cross-attention, or the sum over all scales."""
    linear_cost: float | None = None
    """Cost by Hourglass's linear model, in layers at full length."""


def contenders(choices: Choices, width: int) -> list[Contender]:
    """Return the plain Transformer, then all chunk sizes, then all hierarchies.

    Raises `UserError` for a model that cannot be built.
    """
    sizes: dict[str, Any] = {
        "process_size": 1,
        "num_heads": choices.num_heads,
        "mlp_size": MLP_FACTOR * width,
    }
    plain = PlainTransformerConfig(num_layers=choices.layers, **sizes)
    made = [Contender(PLAIN, plain, str(choices.layers), float(choices.layers))]
    made += [_latent_bottleneck(choices, size, sizes) for size in choices.chunk_sizes]
    return made + [_hourglass(choices, hierarchy, sizes) for hierarchy in choices.hierarchies]


def _latent_bottleneck(choices: Choices, chunk_size: int, sizes: dict[str, Any]) -> Contender:
    config = TemporalLatentBottleneckConfig(
        num_layers=choices.layers,
        cross_every=choices.cross_every,
        num_latents=choices.num_latents,
        chunk_size=chunk_size,
        **sizes,
    )
    layers = f"{choices.layers}+{choices.layers // choices.cross_every}"
    return Contender(f"TLB, K = {chunk_size}", config, layers)


def _hourglass(choices: Choices, hierarchy: str, sizes: dict[str, Any]) -> Contender:
    # Positions are rotary as in the plain Transformer, so that they do not make the difference.
    config = HourglassConfig(hierarchy=hierarchy, window=choices.window, position="rotary", **sizes)
    parsed = parse_hierarchy(hierarchy)
    *around, innermost = parsed.stages
    layers = innermost.num_layers + sum(2 * stage.num_layers for stage in around)
    return Contender(hierarchy, config, str(layers), float(parsed.linear_cost))


# The text of Python's own help as bytes to predict: some 460 KB of English that every Python has.

SYMBOLS = 256
"""Number of values of a byte."""
HELD_OUT = 0.1
"""Portion of the text, at its end, that no training sees."""


def help_text() -> Tensor:
    """Return the topics in alphabetical order, (bytes,) int64."""
    joined = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.from_numpy(np.frombuffer(joined.encode(), np.uint8).astype(np.int64))


def split_text(text: Tensor) -> tuple[Tensor, Tensor]:
    """Split `text`, (bytes,), into the part for training and the part that is held out."""
    first = len(text) - round(len(text) * HELD_OUT)
    return text[:first], text[first:]


def random_windows(
    text: Tensor, ticks: int, batch: int, count: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `count` batches of windows at random places of `text`.

    Each batch holds the bytes and their successors, (B, T) each.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        first = torch.randint(len(text) - ticks, (batch, 1), generator=generator)
        yield _with_next(text, first, ticks)


def all_windows(text: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    """Return adjacent windows of `text`: the bytes and their successors, (windows, T) each.

    The end of the text is left out where it fills no window.
    """
    return _with_next(text, torch.arange(0, len(text) - ticks, ticks)[:, None], ticks)


def _with_next(text: Tensor, first: Tensor, ticks: int) -> tuple[Tensor, Tensor]:
    place = first + torch.arange(ticks)
    return text[place], text[place + 1]


# The memory that a forward pass keeps for the backward pass, counted exactly rather than measured.


def bytes_for_backward(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Return the bytes of the storages that autograd keeps after `forward`.

    Each storage counts once, even if there are several views of it.

    besides: parameters and inputs, which exist anyway and do not count.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        # The storage is held, so that no other tensor can get its address.
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage

    with saved_tensors_hooks(pack, _no_backward):
        forward()
    for tensor in besides:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


def _no_backward(packed: object) -> Tensor:
    raise AssertionError


# The cost of long sequences: of a training pass, and of a control tick late in an episode.


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
    if sizes.device == "cpu":
        quicker_on_cpu(core)
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


# How well the models predict a text after equal trainings: bits for each byte that was held out.

EVALUATED_AT_ONCE = 32
"""Number of windows in a batch of the evaluation; results do not depend on it."""


@dataclass(frozen=True)
class Training:
    """The training, which is the same for all models."""

    steps: int
    learning_rate: float
    seeds: Sequence[int]


@dataclass(frozen=True)
class QualityRow:
    """One model, trained once for each seed."""

    cost: CostRow
    """The cost of a pass at the sizes of the training."""
    bits: list[float]
    """Bits for each held-out byte, by seed. Every window begins with an empty memory."""


def measure_quality(
    models: Sequence[Contender], sizes: CostSizes, training: Training
) -> list[QualityRow]:
    """Measure the cost of all models, and train them. sizes: of the batches of the training."""
    costs = measure_cost(models, sizes)
    text, held_out = split_text(help_text())
    rows = []
    for model, cost in zip(models, costs, strict=True):
        bits = [_train(model, text, held_out, sizes, training, seed) for seed in training.seeds]
        rows.append(QualityRow(cost, bits))
    return rows


def single_byte_bits(ticks: int) -> float:
    """Return the bits for each held-out byte by the frequencies of single bytes.

    This is the baseline that any memory must beat.
    """
    text, held_out = split_text(help_text())
    counts = torch.bincount(text, minlength=SYMBOLS) + 1.0  # so that no byte is impossible
    scores = (counts / counts.sum()).log()
    _, following = all_windows(held_out, ticks)
    return float(-scores[following].mean() / math.log(2))


def _train(
    model: Contender,
    text: Tensor,
    held_out: Tensor,
    sizes: CostSizes,
    training: Training,
    seed: int,
) -> float:
    """Train one model, and return its bits for each held-out byte."""
    torch.manual_seed(seed)
    network = SequenceModel(model.config, SYMBOLS, SYMBOLS, sizes.width).to(sizes.device)
    batches = random_windows(text, sizes.ticks, sizes.batch, training.steps, seed)
    moved = ((symbols.to(sizes.device), next_.to(sizes.device)) for symbols, next_ in batches)
    *_, last = fit(
        network, moved, _loss, learning_rate=training.learning_rate, report_every=training.steps
    )
    bits = bits_per_byte(network, held_out, sizes.ticks)
    print_progress(
        f"quality: {model.name}, seed {seed}: {bits:.3f} bits after {last.seconds:.0f} s"
    )
    return bits


@torch.no_grad()
def bits_per_byte(network: nn.Module, text: Tensor, ticks: int) -> float:
    """Return the mean over all windows of `ticks` bytes of `text`."""
    network.eval()
    symbols, following = all_windows(text, ticks)
    device = next(network.parameters()).device
    parts = zip(symbols.split(EVALUATED_AT_ONCE), following.split(EVALUATED_AT_ONCE), strict=True)
    total = sum(float(_loss(network, s.to(device), f.to(device))) * s.numel() for s, f in parts)
    return total / symbols.numel() / math.log(2)


def _loss(network: nn.Module, symbols: Tensor, following: Tensor) -> Tensor:
    """Return the mean negative log likelihood of `following`, in nats. symbols, following: (B, T)."""
    return F.cross_entropy(network(symbols).flatten(0, 1), following.flatten())


# The tables that `ttm bench sequence` prints.

COST_NOTES = """\
Figures of the plain Transformer: {plain}.

  time     median of a forward and a backward pass, timed in turns with the other models.
  memory   what the forward pass keeps for the backward pass, counted; attention recomputes its scores
           there, and keeps a mask of queries by keys.
  scores   the same if attention keeps its scores, as it did when the papers were written.
  tick     a control tick at batch 1 after {ticks} ticks, with PyTorch. The plain Transformer rotates and
           copies all keys so far. TLB computes new latents, and Hourglass every coarse element, at each
           tick: their cost is constant.
  state    floats carried from tick to tick; that of the plain Transformer grows with every tick.
  linear   Hourglass's linear cost model: layers at full length. It leaves out attention itself.

All models have the same heads, MLPs and tokens; their layers are in the table. TLB has {layers} layers of
self-attention and, after every {cross_every}, one of cross-attention to {num_latents} latents. For
Hourglass the layers of all scales are added; its attention sees {window} elements of its scale,
resamples, and has rotary positions like the plain Transformer's.
"""

QUALITY_NOTES = """\
Figures of the plain Transformer: {plain}.

Prediction of the next byte of the text of Python's help: {steps} steps of {batch} x {ticks} bytes, the same
for all models. bits: for each byte of the last tenth of the text, which is held out, in windows of
{ticks} bytes that begin with an empty memory; the frequencies of single bytes give {single:.2f}. This is
far smaller than the papers' experiments (Hourglass: enwik8, 100 MB), and cannot be compared with them.
It ranks the models on a text after a short training.
"""

Columns = Mapping[str, Callable[[CostRow], str]]


def cost_table(rows: Sequence[CostRow], sizes: CostSizes) -> Table:
    """Return the ratios to the first row, the plain Transformer; its own figures are in the notes."""
    plain = rows[0]
    columns = {
        **_model_columns(),
        **_pass_columns(plain),
        "tick": _ratio("tick_ms", plain),
        "state": _ratio("state_floats", plain, digits=3),
        "linear": _ratio("linear_cost", plain),
    }
    return rows_table(
        f"{sizes.ticks} ticks, batch {sizes.batch}, width {sizes.width}, one token a tick: "
        "ratios to the plain Transformer",
        columns if plain.peak_mb is None else {**columns, "peak": _ratio("peak_mb", plain)},
        rows,
    )


def quality_table(rows: Sequence[QualityRow], training: Training) -> Table:
    """Return bits beside the cost of a training pass, as ratios to the first row."""
    plain = rows[0].cost
    costs = {**_pass_columns(plain), "linear": _ratio("linear_cost", plain)}
    return rows_table(
        f"Quality after {training.steps} steps, and the cost of a step's passes as ratios",
        {
            **{heading: _of_cost(cell) for heading, cell in _model_columns().items()},
            **{f"bits,\nseed {seed}": _bits(number) for number, seed in enumerate(training.seeds)},
            **{heading: _of_cost(cell) for heading, cell in costs.items()},
        },
        rows,
    )


def cost_notes(plain: CostRow, choices: Choices, sizes: CostSizes) -> str:
    """Return an explanation of the columns, and of what the models have in common."""
    return COST_NOTES.format(plain=_in_words(plain), ticks=sizes.ticks, **vars(choices))


def quality_notes(plain: CostRow, sizes: CostSizes, training: Training, single: float) -> str:
    """Return an explanation of the training, and of the baseline of its bits."""
    return QUALITY_NOTES.format(
        plain=_in_words(plain),
        steps=training.steps,
        batch=sizes.batch,
        ticks=sizes.ticks,
        single=single,
    )


def _model_columns() -> Columns:
    """Return the columns that describe a model, in both tables."""
    return {
        "model": lambda row: row.name,
        "layers": lambda row: row.layers,
        "params\n(k)": lambda row: f"{row.parameters / 1e3:,.0f}",
    }


def _pass_columns(plain: CostRow) -> Columns:
    """Return the columns on a training pass, in both tables."""
    return {
        "time": _ratio("train_ms", plain),
        "memory": _ratio("kept_mb", plain),
        "scores": _ratio("kept_with_scores_mb", plain),
    }


def _ratio(field: str, plain: CostRow, digits: int = 2) -> Callable[[CostRow], str]:
    """Return the text of the ratio of `field` to that of `plain`; a dash where one is unknown."""
    get = attrgetter(field)

    def cell(row: CostRow) -> str:
        value, reference = get(row), get(plain)
        unknown = value is None or reference is None
        return decimals(None if unknown else value / reference, digits)

    return cell


def _of_cost(cell: Callable[[CostRow], str]) -> Callable[[QualityRow], str]:
    return lambda row: cell(row.cost)


def _bits(number: int) -> Callable[[QualityRow], str]:
    return lambda row: f"{row.bits[number]:.3f}"


def _in_words(plain: CostRow) -> str:
    """Return the absolute figures to which the ratios refer."""
    passes = (
        f"{plain.train_ms:.0f} ms, {plain.kept_mb:.1f} MB, "
        f"{plain.kept_with_scores_mb:.1f} MB with scores"
    )
    tick = "" if plain.tick_ms is None else f", a tick {plain.tick_ms:.2f} ms"
    peak = "" if plain.peak_mb is None else f", peak {plain.peak_mb:.1f} MB"
    return f"{passes}{tick}{peak}, state {plain.state_floats:,} floats"


def run_bench(options: SequenceOptions) -> None:
    """Measure cost and quality, print a table for each, and write the figures.

    Raises `UserError` if the device is missing.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device is cuda, but PyTorch finds no GPU here; leave it out to run on the CPU"
        )
    report = Report(options.json, options={**asdict(options), "json": None})
    with cpu_threads(options.threads):
        if "cost" in options.parts:
            _run_cost(options, report)
        if "quality" in options.parts:
            _run_quality(options, report)
    report.write()


def _run_cost(options: SequenceOptions, report: Report) -> None:
    sizes = CostSizes(
        width=options.width,
        ticks=options.ticks,
        batch=options.batch,
        rounds=options.rounds,
        tick_blocks=options.tick_blocks,
        device=options.device,
    )
    choices = _choices(options, options.chunk_sizes, options.hierarchies)
    rows = measure_cost(contenders(choices, sizes.width), sizes)
    report.table(cost_table(rows, sizes), cost_notes(rows[0], choices, sizes))
    report.figures["cost"] = [asdict(row) for row in rows]


def _run_quality(options: SequenceOptions, report: Report) -> None:
    sizes = CostSizes(
        width=options.text_width,
        ticks=options.text_ticks,
        batch=options.text_batch,
        rounds=options.rounds,
        tick_blocks=0,
        device=options.device,
    )
    training = Training(options.steps, options.learning_rate, options.seeds)
    choices = _choices(options, options.text_chunk_sizes, options.text_hierarchies)
    rows = measure_quality(contenders(choices, sizes.width), sizes, training)
    single = single_byte_bits(sizes.ticks)
    report.table(
        quality_table(rows, training), quality_notes(rows[0].cost, sizes, training, single)
    )
    report.figures["quality"] = {
        "single_byte_bits": single,
        "rows": [asdict(row) for row in rows],
    }


def _choices(
    options: SequenceOptions, chunk_sizes: tuple[int, ...], hierarchies: tuple[str, ...]
) -> Choices:
    return Choices(
        chunk_sizes=chunk_sizes,
        hierarchies=hierarchies,
        layers=options.layers,
        cross_every=options.cross_every,
        num_latents=options.num_latents,
        window=options.window,
    )
