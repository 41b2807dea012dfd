"""The operations of one step of each temporal core, counted by hand from the sizes in its configuration.

A multiply-add of a matrix product counts as one, so that (P, a) x (a, b) takes P a b. Element-wise
work is counted as the cost analysis of XLA counts it: one for each addition, multiplication or
division of one value, and nothing for exp, tanh, sigmoid and square roots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from fractions import Fraction
from typing import Any

from ttm.policy.cores.baselines import (
    CausalTransformerConfig,
    FrameStackingConfig,
    LstmConfig,
    RecurrentTransformerConfig,
    TemporalMixerConfig,
)
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.sequence import SequenceConfig
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.cores.ttm_variants import MHA_HEADS, WRITE_HIDDEN, WRITE_TOKENS

NORM = 7
"""A layer norm, for each value: sum, square, sum of squares, subtract the mean, multiply by scale / deviation
(2 operations), add the bias."""
GELU = 8
"""x / 2 (1 + tanh(a (x + b x^3))), for each value: 5 for the argument of tanh, and 3 around it."""
SOFTMAX = 4
"""For each weight: the maximum, its subtraction, the sum, the division."""


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
        return sum(astuple(self)) - self.matrix

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


def step_by_hand(config: CoreConfig, width: int, num_inputs: int) -> StepOperations | None:
    """Count one step, at batch 1, of the core that `config.build(width, num_inputs)` makes.

    Returns None for a core that is not in `COUNTS`.
    """
    count = COUNTS.get(type(config))
    return None if count is None else count(config, width, num_inputs)


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


def relative_positions(
    queries: int, keys: int, ages: int, width: int, num_heads: int
) -> Operations:
    """Count the relative positions of Transformer-XL.

    Every age is projected, queries have two biases, and scores by age are added to those by key.
    """
    by_age = Operations(matrix=ages * width * width + queries * ages * width)
    added = Operations(additions=2 * num_heads * queries * keys)
    return by_age + residual(2 * queries, width) + added


def keys_values(tokens: int, width: int) -> Operations:
    """Count the layer norm of tokens and their projections to keys and values."""
    return layer_norm(tokens, width) + dense(tokens, width, 2 * width)


def cross_block(queries: int, keys: int, width: int, num_heads: int, mlp_size: int) -> Operations:
    """Count a pre-norm block of cross-attention and MLP; keys and values are projected already."""
    norms_and_residuals = (layer_norm(queries, width) + residual(queries, width)) * 2
    projections = dense(queries, width, 2 * width)  # to query, and back
    attended = attention(queries, keys, width, num_heads)
    return norms_and_residuals + projections + attended + mlp(queries, width, mlp_size, width)


def self_block(
    tokens: int, width: int, num_heads: int, mlp_size: int, past: int = 0, outputs: int = 0
) -> Operations:
    """Count a pre-norm block of self-attention and MLP; attention also reaches `past` cached tokens.

    outputs: the tokens of which the block computes more than query, key and value; 0 for all.
    """
    out = outputs or tokens
    of_others = dense(tokens - out, width, width) + layer_norm(tokens - out, width)  # their queries
    block = cross_block(out, past + tokens, width, num_heads, mlp_size)
    return of_others + block + dense(tokens, width, 2 * width)


def encoder(
    tokens: int, width: int, num_layers: int, num_heads: int, mlp_size: int, outputs: int = 0
) -> Operations:
    """Count a Transformer: positional embedding, `num_layers` blocks, layer norm.

    outputs: the tokens that the last block computes, from all of them; 0 for all.
    """
    blocks = self_block(tokens, width, num_heads, mlp_size) * max(num_layers - 1, 0)
    if num_layers:
        blocks += self_block(tokens, width, num_heads, mlp_size, outputs=outputs)
    return residual(tokens, width) + blocks + layer_norm(outputs or tokens, width)


def mixer(
    tokens: int, width: int, num_layers: int, token_mixing_size: int, mlp_size: int
) -> Operations:
    """Count an MLP-Mixer: x + MLP(LN x) along the tokens, then along the width; finally a layer norm."""
    norms_and_residuals = (layer_norm(tokens, width) + residual(tokens, width)) * 2
    along_tokens = mlp(width, tokens, token_mixing_size, tokens)
    block = norms_and_residuals + along_tokens + mlp(tokens, width, mlp_size, width)
    return block * num_layers + layer_norm(tokens, width)


def mlp_summary(tokens: int, summaries: int, width: int, bottleneck: int) -> Operations:
    """Count TokenLearner 1.1: weights by an MLP of the normalised tokens, softmax, weighted sums."""
    weights = layer_norm(tokens, width) + mlp(tokens, width, bottleneck, summaries)
    softmax = Operations(softmaxes=SOFTMAX * tokens * summaries)
    return weights + softmax + Operations(matrix=tokens * summaries * width)


def pooled_summary(tokens: int, summaries: int, width: int) -> Operations:
    """Count the means of `summaries` runs of tokens; runs overlap if they do not divide the tokens evenly."""
    starts = (k * tokens // summaries for k in range(summaries))
    ends = (-(-(k + 1) * tokens // summaries) for k in range(summaries))
    return Operations(additions=(sum(ends) - sum(starts) + summaries) * width)


def token_turing(c: TokenTuringConfig, width: int, num_inputs: int) -> StepOperations:
    """Count a step: read [M ‖ I] to r tokens, process them, write [M ‖ I ‖ O] to m tokens.

    The options that are ours process r + m tokens, or write [M ‖ I].
    """
    processed = c.process_size + c.memory_size * c.process_memory
    written = c.memory_size + num_inputs + c.process_size * c.write_outputs
    return StepOperations(
        read(c, num_inputs, width), process(c, processed, width), write(c, written, width)
    )


def summary(c: TokenTuringConfig, tokens: int, summaries: int, width: int) -> Operations:
    """Count S_k of `tokens`, with the outer positional embedding."""
    position = residual(tokens * c.positional_embedding, width)
    if c.summarizer == "mlp":
        return position + mlp_summary(tokens, summaries, width, c.bottleneck)
    if c.summarizer == "pooling":
        return position + pooled_summary(tokens, summaries, width)
    if c.summarizer == "query":  # eq. 2: without projections
        return position + attention(summaries, tokens, width, num_heads=1)
    projections = dense(summaries, width, 2 * width) + dense(tokens, width, 2 * width)
    return position + projections + attention(summaries, tokens, width, MHA_HEADS)


def read(c: TokenTuringConfig, num_inputs: int, width: int) -> Operations:
    """Count the summary of [M ‖ I], or queries from the memory that attend to them."""
    r, tokens = c.process_size, c.memory_size + num_inputs
    if c.read == "summarize":
        return summary(c, tokens, r, width)
    queries = summary(c, c.memory_size, r, width) + residual(r, width)
    context = residual(tokens * c.positional_embedding, width) + keys_values(tokens, width)
    return queries + context + cross_block(r, tokens, width, c.num_heads, c.mlp_size)


def process(c: TokenTuringConfig, tokens: int, width: int) -> Operations:
    """Count the processing unit."""
    if c.processor == "transformer":
        return encoder(tokens, width, c.num_layers, c.num_heads, c.mlp_size, c.process_size)
    if c.processor == "mixer":
        return mixer(tokens, width, c.num_layers, c.token_mixing_size, c.mlp_size)
    layer = layer_norm(tokens, width) + mlp(tokens, width, c.mlp_size, width)
    return layer * c.num_layers + layer_norm(tokens, width)


def write(c: TokenTuringConfig, tokens: int, width: int) -> Operations:
    """Count the write of `tokens` to m slots."""
    slots = c.memory_size
    if c.write == "erase_add":
        return erase_add(slots, c.process_size, width)
    if c.write == "concatenate":
        return Operations()
    if c.write == "ring":  # one slot is visited, whose candidate sees no other slot
        return summary(c, 1 + tokens - slots, 1, width) + gates(1, width)
    candidates = summary(c, tokens, slots, width)
    return candidates + gates(slots, width) if c.write == "gated" else candidates


def gates(slots: int, width: int) -> Operations:
    """Count the gates and the mixture S + g (M - S), 3 operations a value."""
    gate = layer_norm(slots, 2 * width) + dense(slots, 2 * width, width)
    return gate + Operations(activations=3 * slots * width)


def erase_add(memory: int, outputs: int, width: int) -> Operations:
    """Count the erase-and-add write with T write tokens.

    W selects among the slots; E and A, from the outputs, are the vectors to erase and to add.
    M prod_t (1 - W_t E_t) takes 3 T + 1 element-wise operations for each value of the memory.
    mean_t (1 - W_t A_t) is a matrix product, and takes 3 operations with the sum of both.
    """
    writes = WRITE_TOKENS
    selection = layer_norm(memory, width) + mlp(memory, width, WRITE_HIDDEN, writes)
    softmax = Operations(softmaxes=SOFTMAX * memory * writes)
    vectors = layer_norm(outputs, width) + mlp(width, outputs, WRITE_HIDDEN, writes)
    vectors = (vectors + mlp(writes, width, WRITE_HIDDEN, width)) * 2
    erased_and_added = Operations(
        matrix=writes * memory * width, activations=(3 * writes + 1 + 3) * memory * width
    )
    return selection + softmax + vectors + erased_and_added


def read_inputs(c: SequenceConfig, width: int, num_inputs: int) -> Operations:
    """Count the first part of all sequence models: N tokens, with positions, to r tokens."""
    summarized = mlp_summary(num_inputs, c.process_size, width, c.bottleneck)
    return residual(num_inputs, width) + summarized


def lstm(c: LstmConfig, width: int, num_inputs: int) -> StepOperations:
    """Count all layers over the r slots, and the layer norms before and after them.

    A layer takes W x + a + U h + b for the four gates, then f c + i g, and o tanh(c).
    """
    slots = c.process_size
    ends = residual(slots, width) + layer_norm(slots, width) * 2
    layer = dense(slots, width, 4 * width) * 2 + residual(slots, 4 * width)
    layer += Operations(activations=4 * slots * width)
    return StepOperations(read_inputs(c, width, num_inputs), ends + layer * c.num_layers)


def causal_transformer(c: CausalTransformerConfig, width: int, num_inputs: int) -> StepOperations:
    """Count r new tokens that attend to the window, whose keys are rotated again at every tick."""
    new, in_window = c.process_size, c.process_size * c.window
    block = self_block(new, width, c.num_heads, c.mlp_size, past=in_window - new)
    block += residual(3 * (new + in_window), width)  # rotations: two products and their sum
    ends = residual(new, width) + layer_norm(new, width)
    return StepOperations(read_inputs(c, width, num_inputs), ends + block * c.num_layers)


def recurrent_transformer(
    c: RecurrentTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count m state tokens and r read tokens that pass through one encoder."""
    tokens = c.memory_size + c.process_size
    whole = encoder(tokens, width, c.num_layers, c.num_heads, c.mlp_size)
    return StepOperations(read_inputs(c, width, num_inputs), whole)


def windowed(
    c: FrameStackingConfig | TemporalMixerConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count the read of the newest tick, the ages of all ticks, and an encoder or mixer over the window."""
    tokens = c.num_tokens
    if isinstance(c, TemporalMixerConfig):
        over = mixer(tokens, width, c.num_layers, c.token_mixing_size, c.mlp_size)
    else:
        over = encoder(tokens, width, c.num_layers, c.num_heads, c.mlp_size)
    return StepOperations(read_inputs(c, width, num_inputs), residual(tokens, width) + over)


def latent_bottleneck(
    c: TemporalLatentBottleneckConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count r new tokens that attend to the K places of the chunk and to N latents.

    The latents are computed at every tick.
    """
    new, chunk = c.process_size, c.process_size * c.chunk_size
    sizes = (width, c.num_heads, c.mlp_size)
    crossings = c.num_layers // c.cross_every
    own = keys_values(new, width) + cross_block(new, chunk, *sizes)
    crossed = cross_block(new, c.num_latents, *sizes)
    ends = residual(new, width) + layer_norm(new, width)
    update = keys_values(chunk, width) + cross_block(c.num_latents, chunk, *sizes)
    return StepOperations(
        read=read_inputs(c, width, num_inputs),
        process=ends + own * c.num_layers + crossed * crossings,
        write=update + keys_values(c.num_latents, width) * crossings,
    )


def hourglass(c: HourglassConfig, width: int, num_inputs: int) -> StepOperations:
    """Count the layers of every scale and the resampling between them, for one element of each scale.

    A control tick computes the coarse elements at every tick.
    """
    hierarchy, new = parse_hierarchy(c.hierarchy), c.process_size
    *around, innermost = hierarchy.stages
    layer = hourglass_layer(c, width, c.window)
    layers = layer * (innermost.num_layers + sum(2 * stage.num_layers for stage in around))
    whole = residual(new, width) + layer_norm(new, width) + layers
    for factor in hierarchy.factors:
        whole += shortening(c, width, factor) + upsampling(c, width, factor) + residual(new, width)
    return StepOperations(read_inputs(c, width, num_inputs), whole)


def hourglass_layer(c: HourglassConfig, width: int, elements: int, spacing: int = 1) -> Operations:
    """Count one layer: r new keys and values, then r tokens that attend to those of `elements` elements.

    spacing: the distance between successive elements, in elements of the finer scale.
    """
    new, seen = c.process_size, c.process_size * elements
    block = keys_values(new, width) + cross_block(new, seen, width, c.num_heads, c.mlp_size)
    if c.position == "rotary":
        return block + residual(3 * (new + seen), width)
    return block + relative_positions(new, seen, c.window * spacing, width, c.num_heads)


def shortening(c: HourglassConfig, width: int, factor: int) -> Operations:
    """Count `factor` elements becoming one."""
    if c.pooling == "linear":
        return dense(c.process_size, factor * width, width)
    means = residual(factor * c.process_size, width)
    return means if c.pooling == "average" else means + hourglass_layer(c, width, c.window)


def upsampling(c: HourglassConfig, width: int, factor: int) -> Operations:
    """Count one element becoming `factor`."""
    if c.upsampling == "repeat":
        return Operations()
    spread = dense(c.process_size, width, factor * width)
    if c.upsampling == "linear":
        return spread
    attended = hourglass_layer(c, width, c.window + 1, spacing=factor)
    return spread + residual(c.process_size, width) + attended


def element_by_hand(c: HourglassConfig, width: int) -> Fraction:
    """Count the multiply-adds of matrix products for one element (tick) of a long sequence.

    The count leaves out the read of the inputs. It holds for resampling by attention and rotary
    positions. What a mask hides from attention does not count.
    """
    hierarchy = parse_hierarchy(c.hierarchy)
    *around, innermost = hierarchy.stages
    layer = hourglass_layer(c, width, c.window).matrix
    cost = Fraction(layer * innermost.num_layers, innermost.scale)
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        spread = dense(c.process_size, width, factor * width).matrix
        # Shortening has queries at the coarse scale, and keys and values at the fine one; upsampling
        # is the other way round. Together they cost one layer at each scale.
        cost += Fraction(layer * (2 * stage.num_layers + 1) + spread, stage.scale)
        cost += Fraction(layer, stage.scale * factor)
    return cost


COUNTS: Mapping[type[CoreConfig], Callable[[Any, int, int], StepOperations]] = {
    TokenTuringConfig: token_turing,
    LstmConfig: lstm,
    CausalTransformerConfig: causal_transformer,
    RecurrentTransformerConfig: recurrent_transformer,
    FrameStackingConfig: windowed,
    TemporalMixerConfig: windowed,
    TemporalLatentBottleneckConfig: latent_bottleneck,
    HourglassConfig: hourglass,
}
"""Class of the configuration -> function of (configuration, width, number of input tokens)."""
