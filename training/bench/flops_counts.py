"""The operations of one step of each temporal core, counted by hand.

The counts are formulas of the configuration and need no tensors. `COUNTS` is the table of them. A
core without an entry is counted by PyTorch's counter alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.cores.baselines import LstmConfig, TemporalMixerConfig
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.sequence import ReadSizes, WindowedConfig
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.transformers import (
    CausalTransformerConfig,
    FrameStackingConfig,
    RecurrentTransformerConfig,
)
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.cores.ttm_variants import MHA_HEADS, WRITE_HIDDEN, WRITE_TOKENS
from ttm.training.bench.common import rows_table

# Numbers of operations, by kind, and the rule by which they add up to one figure.
#
# A multiply-add of a matrix product counts as one, so that (P, a) x (a, b) takes P a b. Element-wise
# work is counted as the cost analysis of XLA counts it: one for each addition, multiplication or
# division of one value, and nothing for exp, tanh, sigmoid and square roots.


@dataclass(frozen=True)
class Operations:
    """The operations of one part of a step: `matrix` in multiply-adds, the others element-wise."""

    matrix: int = 0
    norms: int = 0
    activations: int = 0
    """gelu, and the products of gates."""
    softmaxes: int = 0
    additions: int = 0
    """Biases, residuals, positional embeddings, and the scaling of queries."""

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Operations:
        return Operations(*(times * value for value in astuple(self)))

    @property
    def elementwise(self) -> int:
        """The sum of all element-wise operations."""
        return sum(asdict(self).values()) - self.matrix

    @property
    def total(self) -> float:
        """Multiply-adds plus half of the element-wise operations.

        XLA counts two for a multiply-add. Scenic, the framework of the TTM paper's authors, halves
        the whole count to state the cost of a model, so element-wise work counts half.
        """
        return self.matrix + self.elementwise / 2


@dataclass(frozen=True)
class StepOperations:
    """One step of a core in three parts. Cores that do not read or write a memory have `process` alone."""

    read: Operations = Operations()
    process: Operations = Operations()
    write: Operations = Operations()

    @property
    def whole(self) -> Operations:
        """The sum of the three parts."""
        return self.read + self.process + self.write


# The operations of the layers that temporal cores are made of, counted by hand from their sizes.

NORM = 7
"""A layer norm, for each value: sum, square, sum of squares, subtract the mean, multiply by scale / deviation
(2 operations), add the bias."""
GELU = 8
"""x / 2 (1 + tanh(a (x + b x^3))), for each value: 5 for the argument of tanh, and 3 around it."""
SOFTMAX = 4
"""For each weight: the maximum, its subtraction, the sum, the division."""


def dense(tokens: int, in_size: int, out_size: int) -> Operations:
    """Count a linear layer with a bias."""
    return Operations(matrix=tokens * in_size * out_size, additions=tokens * out_size)


def layer_norm(tokens: int, width: int) -> Operations:
    """Count a layer norm with scale and bias."""
    return Operations(norms=NORM * tokens * width)


def residual(tokens: int, width: int) -> Operations:
    """Count one addition a value: a residual connection, or a positional embedding."""
    return Operations(additions=tokens * width)


def mlp(tokens: int, in_size: int, hidden_size: int, out_size: int) -> Operations:
    """Count an MLP with one hidden layer: dense, gelu, dense."""
    gelu = Operations(activations=GELU * tokens * hidden_size)
    return dense(tokens, in_size, hidden_size) + gelu + dense(tokens, hidden_size, out_size)


def attention(queries: int, keys: int, width: int, num_heads: int) -> Operations:
    """Count attention without projections: the weights of `queries` over `keys`, and the weighted sums."""
    return Operations(
        matrix=2 * queries * keys * width,
        softmaxes=SOFTMAX * num_heads * queries * keys,
        additions=queries * width,
    )


def encoder_block(
    tokens: int,
    width: int,
    num_heads: int,
    mlp_size: int,
    past: int = 0,
    outputs: int | None = None,
) -> Operations:
    """Count a pre-norm block of self-attention and MLP; attention also reaches `past` cached tokens.

    outputs: the tokens of which the block computes more than query, key and value; None for all.
    """
    out = tokens if outputs is None else outputs
    norms_and_residuals = (
        layer_norm(tokens, width) + layer_norm(out, width) + residual(out, width) * 2
    )
    projections = dense(tokens, width, 3 * width) + dense(out, width, width)
    attended = attention(out, past + tokens, width, num_heads)
    return norms_and_residuals + projections + attended + mlp(out, width, mlp_size, width)


def cross_block(queries: int, keys: int, width: int, num_heads: int, mlp_size: int) -> Operations:
    """Count a pre-norm block of cross-attention and MLP; keys and values are projected already."""
    norms_and_residuals = (layer_norm(queries, width) + residual(queries, width)) * 2
    projections = dense(queries, width, 2 * width)  # to query, and back
    attended = attention(queries, keys, width, num_heads)
    return norms_and_residuals + projections + attended + mlp(queries, width, mlp_size, width)


def keys_values(tokens: int, width: int) -> Operations:
    """Count the layer norm of tokens and their projections to keys and values."""
    return layer_norm(tokens, width) + dense(tokens, width, 2 * width)


def count_encoder(
    tokens: int,
    width: int,
    num_layers: int,
    num_heads: int,
    mlp_size: int,
    outputs: int | None = None,
) -> Operations:
    """Count a Transformer: positional embedding, `num_layers` blocks, layer norm.

    outputs: the tokens that the last block computes, from all of them; None for all.
    """
    blocks = encoder_block(tokens, width, num_heads, mlp_size) * max(num_layers - 1, 0)
    if num_layers:
        blocks += encoder_block(tokens, width, num_heads, mlp_size, outputs=outputs)
    final = tokens if outputs is None else outputs
    return residual(tokens, width) + blocks + layer_norm(final, width)


def rotation(tokens: int, width: int) -> Operations:
    """Count a rotary embedding: two products and their sum for each value."""
    return Operations(additions=3 * tokens * width)


def relative_positions(
    queries: int, keys: int, ages: int, width: int, num_heads: int
) -> Operations:
    """Count the relative positions of Transformer-XL.

    Every age is projected, queries have two biases, and scores by age are added to those by key.
    """
    by_age = Operations(matrix=ages * width * width + queries * ages * width)
    return (
        by_age + residual(2 * queries, width) + Operations(additions=2 * num_heads * queries * keys)
    )


def lstm_layer(tokens: int, width: int) -> Operations:
    """Count an LSTM layer: W x + a + U h + b for the four gates, then f c + i g, and o tanh(c)."""
    gates = dense(tokens, width, 4 * width) * 2 + residual(tokens, 4 * width)
    return gates + Operations(activations=4 * tokens * width)


def count_mixer(
    tokens: int, width: int, num_layers: int, token_mixing_size: int, mlp_size: int
) -> Operations:
    """Count an MLP-Mixer: x + MLP(LN x) along the tokens, then along the width; finally a layer norm."""
    norms_and_residuals = (layer_norm(tokens, width) + residual(tokens, width)) * 2
    along_tokens = mlp(width, tokens, token_mixing_size, tokens)
    block = norms_and_residuals + along_tokens + mlp(tokens, width, mlp_size, width)
    return block * num_layers + layer_norm(tokens, width)


def mlp_stack(tokens: int, width: int, num_layers: int, mlp_size: int) -> Operations:
    """Count `num_layers` layers MLP(LN x) without residuals, and a final layer norm."""
    layer = layer_norm(tokens, width) + mlp(tokens, width, mlp_size, width)
    return layer * num_layers + layer_norm(tokens, width)


def mlp_summary(tokens: int, summaries: int, width: int, bottleneck: int) -> Operations:
    """Count TokenLearner 1.1: weights by an MLP of the normalised tokens, softmax, weighted sums."""
    weights = layer_norm(tokens, width) + mlp(tokens, width, bottleneck, summaries)
    softmax = Operations(softmaxes=SOFTMAX * tokens * summaries)
    return weights + softmax + Operations(matrix=tokens * summaries * width)


def attention_summary(tokens: int, summaries: int, width: int, num_heads: int) -> Operations:
    """Count attention of learned queries to the tokens, with all four projections."""
    of_queries = dense(summaries, width, 2 * width) + attention(summaries, tokens, width, num_heads)
    return of_queries + dense(tokens, width, 2 * width)


def query_summary(tokens: int, summaries: int, width: int) -> Operations:
    """Count the summary of TTM, eq. 2: attention of learned queries to the tokens, without projections."""
    return attention(summaries, tokens, width, num_heads=1)


def pooled_summary(tokens: int, summaries: int, width: int) -> Operations:
    """Count the means of `summaries` runs of tokens; runs overlap if they do not divide the tokens evenly."""
    starts = (k * tokens // summaries for k in range(summaries))
    ends = (-(-(k + 1) * tokens // summaries) for k in range(summaries))
    return Operations(additions=(sum(ends) - sum(starts) + summaries) * width)


def erase_add(memory: int, outputs: int, writes: int, width: int, bottleneck: int) -> Operations:
    """Count the erase-and-add write with T write tokens (`writes`).

    W selects among the slots; E and A, from the outputs, are the vectors to erase and to add.
    M prod_t (1 - W_t E_t) takes 3 T + 1 element-wise operations for each value of the memory.
    mean_t (1 - W_t A_t) is a matrix product, and takes 3 operations with the sum of both.
    """
    selection = layer_norm(memory, width) + mlp(memory, width, bottleneck, writes)
    softmax = Operations(softmaxes=SOFTMAX * memory * writes)
    vectors = layer_norm(outputs, width) + mlp(width, outputs, bottleneck, writes)
    vectors = (vectors + mlp(writes, width, bottleneck, width)) * 2
    erased_and_added = Operations(
        matrix=writes * memory * width, activations=(3 * writes + 1 + 3) * memory * width
    )
    return selection + softmax + vectors + erased_and_added


# The operations of one step of Hourglass, counted by hand.


def hourglass_process(config: HourglassConfig, width: int) -> Operations:
    """Count the layers of every scale and the resampling between them, for one element of each scale.

    A control tick computes the coarse elements at every tick.
    """
    hierarchy, new = parse_hierarchy(config.hierarchy), config.process_size
    *around, innermost = hierarchy.stages
    process = residual(new, width) + layer_norm(new, width)
    process += hourglass_layer(config, width, config.window) * innermost.num_layers
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        process += hourglass_layer(config, width, config.window) * (2 * stage.num_layers)
        process += SHORTENINGS[config.pooling](config, width, factor)
        process += UPSAMPLINGS[config.upsampling](config, width, factor)
        process += residual(new, width)
    return process


def hourglass_layer(
    config: HourglassConfig, width: int, elements: int, spacing: int = 1
) -> Operations:
    """Count one layer: r new keys and values, then r tokens that attend to those of `elements` elements.

    spacing: the distance between successive elements, in elements of the finer scale.
    """
    new, seen = config.process_size, config.process_size * elements
    block = keys_values(new, width) + cross_block(
        new, seen, width, config.num_heads, config.mlp_size
    )
    if config.position == "rotary":
        return block + rotation(new, width) + rotation(seen, width)
    return block + relative_positions(new, seen, config.window * spacing, width, config.num_heads)


SHORTENINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "average": lambda c, width, k: residual(k * c.process_size, width),
        "linear": lambda c, width, k: dense(c.process_size, k * width, width),
        "attention": lambda c, width, k: (
            residual(k * c.process_size, width) + hourglass_layer(c, width, c.window)
        ),
    }
)
"""Value of `pooling` -> the count of k elements becoming one."""

UPSAMPLINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "repeat": lambda c, width, k: Operations(),
        "linear": lambda c, width, k: dense(c.process_size, width, k * width),
        "attention": lambda c, width, k: (
            dense(c.process_size, width, k * width)
            + residual(c.process_size, width)
            + hourglass_layer(c, width, c.window + 1, spacing=k)
        ),
    }
)
"""Value of `upsampling` -> the count of one element becoming k."""


# The operations of one step of the Token Turing Machine, counted by hand, for all its variants.


def token_turing(config: TokenTuringConfig, width: int, num_inputs: int) -> StepOperations:
    """Count a step: read [M ‖ I] to r tokens, process them, write [M ‖ I ‖ O] to m tokens.

    The options that are ours process r + m tokens, or write [M ‖ I].
    """
    processed = config.process_size + config.memory_size * config.process_memory
    written_from = config.memory_size + num_inputs + config.process_size * config.write_outputs
    return StepOperations(
        read=READS[config.read](config, num_inputs, width),
        process=PROCESSORS[config.processor](config, processed, width),
        write=WRITES[config.write](config, written_from, width),
    )


def _summary(config: TokenTuringConfig, tokens: int, summaries: int, width: int) -> Operations:
    """Count S_k, and the outer positional embedding if there is one."""
    position = residual(tokens, width) if config.positional_embedding else Operations()
    return position + SUMMARIZERS[config.summarizer](config, tokens, summaries, width)


def _read_by_attention(config: TokenTuringConfig, num_inputs: int, width: int) -> Operations:
    """Count the queries from the memory, keys and values of [M ‖ I], and the attention block."""
    read, tokens = config.process_size, config.memory_size + num_inputs
    queries = _summary(config, config.memory_size, read, width) + residual(read, width)
    position = tokens if config.positional_embedding else 0
    context = residual(position, width) + keys_values(tokens, width)
    return queries + context + cross_block(read, tokens, width, config.num_heads, config.mlp_size)


def _write_by_gates(config: TokenTuringConfig, tokens: int, width: int) -> Operations:
    """Count the candidates of all slots, and their gates."""
    slots = config.memory_size
    return _summary(config, tokens, slots, width) + _gates(slots, width)


def _write_by_ring(config: TokenTuringConfig, tokens: int, width: int) -> Operations:
    """Count the candidate of the slot that is visited, which sees no other slot, and its gates."""
    seen = 1 + tokens - config.memory_size
    return _summary(config, seen, 1, width) + _gates(1, width)


def _gates(slots: int, width: int) -> Operations:
    """Count the gates and the mixture S + g (M - S), 3 operations a value."""
    gates = layer_norm(slots, 2 * width) + dense(slots, 2 * width, width)
    return gates + Operations(activations=3 * slots * width)


SUMMARIZERS: Mapping[str, Callable[[TokenTuringConfig, int, int, int], Operations]] = (
    MappingProxyType(
        {
            "mlp": lambda c, tokens, k, width: mlp_summary(tokens, k, width, c.bottleneck),
            "mha": lambda c, tokens, k, width: attention_summary(tokens, k, width, MHA_HEADS),
            "query": lambda c, tokens, k, width: query_summary(tokens, k, width),
            "pooling": lambda c, tokens, k, width: pooled_summary(tokens, k, width),
        }
    )
)
"""Value of `summarizer` -> the count of a summary of `tokens` to k tokens."""

READS: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "summarize": lambda c, num_inputs, width: _summary(
            c, c.memory_size + num_inputs, c.process_size, width
        ),
        "attend": _read_by_attention,
    }
)
"""Value of `read` -> its count."""

PROCESSORS: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "transformer": lambda c, tokens, width: count_encoder(
            tokens, width, c.num_layers, c.num_heads, c.mlp_size, c.process_size
        ),
        "mixer": lambda c, tokens, width: count_mixer(
            tokens, width, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda c, tokens, width: mlp_stack(tokens, width, c.num_layers, c.mlp_size),
    }
)
"""Value of `processor` -> the count of its work on so many tokens."""

WRITES: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "summarize": lambda c, tokens, width: _summary(c, tokens, c.memory_size, width),
        "erase_add": lambda c, tokens, width: erase_add(
            c.memory_size, c.process_size, WRITE_TOKENS, width, WRITE_HIDDEN
        ),
        "concatenate": lambda c, tokens, width: Operations(),
        "gated": _write_by_gates,
        "ring": _write_by_ring,
    }
)
"""Value of `write` -> its count."""


def step_by_hand(config: CoreConfig, width: int, num_inputs: int) -> StepOperations | None:
    """Count one step, at batch 1, of the core that `config.build(width, num_inputs)` makes.

    Returns None for a core that is not in `COUNTS`.
    """
    count = COUNTS.get(type(config))
    return None if count is None else count(config, width, num_inputs)


def lstm(config: LstmConfig, width: int, num_inputs: int) -> StepOperations:
    """Count all layers over the r slots, and the layer norms before and after them."""
    slots = config.process_size
    ends = residual(slots, width) + layer_norm(slots, width) * 2
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ends + lstm_layer(slots, width) * config.num_layers,
    )


def causal_transformer(
    config: CausalTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count r new tokens that attend to the window, whose keys are rotated again at every tick."""
    new, in_window = config.process_size, config.process_size * config.window
    block = encoder_block(new, width, config.num_heads, config.mlp_size, past=in_window - new)
    block += rotation(new, width) + rotation(in_window, width)
    ends = residual(new, width) + layer_norm(new, width)
    return StepOperations(
        read=_read(config, width, num_inputs), process=ends + block * config.num_layers
    )


def recurrent_transformer(
    config: RecurrentTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count m state tokens and r read tokens that pass through one encoder."""
    tokens = config.memory_size + config.process_size
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=count_encoder(tokens, width, config.num_layers, config.num_heads, config.mlp_size),
    )


def frame_stacking(config: FrameStackingConfig, width: int, num_inputs: int) -> StepOperations:
    """Count an encoder over the tokens of the window."""
    encoder = count_encoder(
        config.num_tokens, width, config.num_layers, config.num_heads, config.mlp_size
    )
    return _windowed(config, width, num_inputs, encoder)


def temporal_mixer(config: TemporalMixerConfig, width: int, num_inputs: int) -> StepOperations:
    """Count an MLP-Mixer over the tokens of the window."""
    mixer = count_mixer(
        config.num_tokens, width, config.num_layers, config.token_mixing_size, config.mlp_size
    )
    return _windowed(config, width, num_inputs, mixer)


def latent_bottleneck(
    config: TemporalLatentBottleneckConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count r new tokens that attend to the K places of the chunk and to N latents.

    The latents are computed at every tick.
    """
    new, chunk = config.process_size, config.process_size * config.chunk_size
    sizes = (width, config.num_heads, config.mlp_size)
    crossings = config.num_layers // config.cross_every
    own = keys_values(new, width) + cross_block(new, chunk, *sizes)
    crossed = cross_block(new, config.num_latents, *sizes)
    update = keys_values(chunk, width) + cross_block(config.num_latents, chunk, *sizes)
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=residual(new, width)
        + own * config.num_layers
        + crossed * crossings
        + layer_norm(new, width),
        write=update + keys_values(config.num_latents, width) * crossings,
    )


def hourglass(config: HourglassConfig, width: int, num_inputs: int) -> StepOperations:
    """Count the layers of all scales, which are all computed at every tick."""
    return StepOperations(
        read=_read(config, width, num_inputs), process=hourglass_process(config, width)
    )


def _windowed(
    config: WindowedConfig, width: int, num_inputs: int, processor: Operations
) -> StepOperations:
    """Count the read of the newest tick, the embedding of the age of all ticks, and the processor."""
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=residual(config.num_tokens, width) + processor,
    )


def _read(config: ReadSizes, width: int, num_inputs: int) -> Operations:
    """Count the first part of all sequence models: N tokens, with a positional embedding, become r."""
    summary = mlp_summary(num_inputs, config.process_size, width, config.bottleneck)
    return residual(num_inputs, width) + summary


COUNTS: Mapping[type[CoreConfig], Callable[[Any, int, int], StepOperations]] = MappingProxyType(
    {
        TokenTuringConfig: token_turing,
        LstmConfig: lstm,
        CausalTransformerConfig: causal_transformer,
        RecurrentTransformerConfig: recurrent_transformer,
        FrameStackingConfig: frame_stacking,
        TemporalMixerConfig: temporal_mixer,
        TemporalLatentBottleneckConfig: latent_bottleneck,
        HourglassConfig: hourglass,
    }
)
"""Class of the configuration -> function of (configuration, width, number of input tokens)."""


# The linear cost model of Hourglass (Nawrot et al. 2021) beside the matrix products of our core.

HIERARCHIES = (
    "2@1 4@4 2@1",
    "2@1 8@4 2@1",
    "3@1 8@4 3@1",
    "4@1 8@4 4@1",
    "2@1 1@3 2@1",
    "2@1 4@3 2@1",
    "2@1 8@3 2@1",
    "2@1 16@3 2@1",
    "2@1 1@2 4@4 1@2 2@1",
    "5@1 8@2 5@1",
    "5@1 24@3 5@1",
    "3@1 24@3 3@1",
)
"""The hierarchies of the paper."""

NOTES = """\
  model     the paper's: a layer at scale k costs 1 / k, and each change of scale costs one layer of its
            finer side.
  element   matrix products of our core for one element of a long sequence, as in training, where coarse
            elements are computed once in k ticks. Shortening and upsampling together cost one layer at
            the fine scale and one at the coarse scale, where the model has two at the fine scale; but a
            linear map adds k products of D x D.
  tick      matrix products of a control tick, which computes every scale at every tick: for a robot, a
            constant time matters more than a low mean.
All in layers at full length, of {layer:,} multiply-adds each: D = {width}, MLP {mlp_size},
window {window}, rotary positions. Relative positions add to each layer a projection of the ages in the
window: once in a sequence; in a control tick, at every tick with PyTorch, and once at load with
OpenVINO.
"""


@dataclass(frozen=True)
class HierarchyCost:
    """The cost of one hierarchy, in layers at full length."""

    hierarchy: str
    model: float
    """The paper's linear cost."""
    element: float
    """Matrix products for one element of a long sequence."""
    tick: float
    """Matrix products of a control tick."""


def measure_hierarchies(config: HourglassConfig, width: int) -> list[HierarchyCost]:
    """Count the paper's hierarchies with the sizes of `config`."""
    return [_measure(_of_model(config, hierarchy), width) for hierarchy in HIERARCHIES]


def hierarchy_table(rows: Sequence[HierarchyCost]) -> Table:
    """Return the table with one line for each hierarchy."""
    return rows_table(
        "Hourglass: the paper's linear cost model, and matrix products counted",
        {
            "hierarchy": lambda row: row.hierarchy,
            "model": lambda row: f"{row.model:.2f}",
            "element": lambda row: f"{row.element:.2f}",
            "element\n/ model": lambda row: f"{row.element / row.model:.2f}",
            "tick": lambda row: f"{row.tick:.2f}",
            "tick\n/ model": lambda row: f"{row.tick / row.model:.2f}",
        },
        rows,
    )


def hierarchy_notes(config: HourglassConfig, width: int) -> str:
    """Return the notes below the table, with the sizes of `config`."""
    return NOTES.format(
        layer=_layer(_of_model(config, HIERARCHIES[0]), width),
        width=width,
        mlp_size=config.mlp_size,
        window=config.window,
    )


def element_by_hand(config: HourglassConfig, width: int) -> Fraction:
    """Count the multiply-adds of matrix products for one element (tick) of a long sequence.

    The count leaves out the read of the inputs. It holds for resampling by attention and rotary
    positions. What a mask hides from attention does not count.
    """
    hierarchy = parse_hierarchy(config.hierarchy)
    *around, innermost = hierarchy.stages
    layer = _layer(config, width)
    cost = Fraction(layer * innermost.num_layers, innermost.scale)
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        spread = dense(config.process_size, width, factor * width).matrix
        # Shortening has queries at the coarse scale, and keys and values at the fine one; upsampling
        # is the other way round. Together they cost one layer at each scale.
        cost += Fraction(layer * (2 * stage.num_layers + 1) + spread, stage.scale)
        cost += Fraction(layer, stage.scale * factor)
    return cost


def _measure(config: HourglassConfig, width: int) -> HierarchyCost:
    layer = _layer(config, width)
    return HierarchyCost(
        hierarchy=config.hierarchy,
        model=float(parse_hierarchy(config.hierarchy).linear_cost),
        element=float(element_by_hand(config, width) / layer),
        tick=hourglass(config, width, num_inputs=1).process.matrix / layer,
    )


def _layer(config: HourglassConfig, width: int) -> int:
    """Count the multiply-adds of one layer at full length."""
    return hourglass_layer(config, width, config.window).matrix


def _of_model(config: HourglassConfig, hierarchy: str) -> HourglassConfig:
    """Return `config` with what the cost model assumes: one token an element, resampling by attention."""
    return replace(
        config,
        hierarchy=hierarchy,
        process_size=1,
        pooling="attention",
        upsampling="attention",
        position="rotary",
    )
