"""Operations of the pieces that temporal cores are made of, counted by hand from their sizes.

Matrix products count one for a multiply-add, so that (P, a) x (a, b) takes P a b. Element-wise work is
counted as XLA's cost analysis counts it, one for each addition, multiplication or division of one value, and
exp, tanh, sigmoid and square roots not at all: a layer norm takes 7 a value, gelu (tanh) 8, softmax 4, a bias or
a residual 1. `Operations.total` takes it at half, since Scenic, the TTM authors' framework, halves XLA's
count (which has two for a multiply-add) to state the cost of a model.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass

NORM = 7
"""A layer norm, for each value: sum, square, sum of squares, minus the mean, times scale / deviation (2), plus bias."""
GELU = 8
"""x / 2 (1 + tanh(a (x + b x^3))), for each value: 5 for the argument of tanh, and 3 around it."""
SOFTMAX = 4
"""For each weight: the maximum, minus it, the sum, divided by it."""


@dataclass(frozen=True)
class Operations:
    """What one part of a step takes: `matrix` in multiply-adds, the others in element-wise operations."""

    matrix: int = 0
    norms: int = 0
    activations: int = 0
    """gelu, and the products of gates."""
    softmaxes: int = 0
    additions: int = 0
    """Biases, residuals, embeddings of the position, the scaling of queries."""

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Operations:
        return Operations(*(times * value for value in astuple(self)))

    @property
    def elementwise(self) -> int:
        """All element-wise operations."""
        return sum(asdict(self).values()) - self.matrix

    @property
    def total(self) -> float:
        """Multiply-adds, with element-wise work at half."""
        return self.matrix + self.elementwise / 2


@dataclass(frozen=True)
class StepOperations:
    """One step of a core in its three parts. Cores without a memory to read and write have `process` alone."""

    read: Operations = Operations()
    process: Operations = Operations()
    write: Operations = Operations()

    @property
    def whole(self) -> Operations:
        return self.read + self.process + self.write


def dense(tokens: int, in_size: int, out_size: int) -> Operations:
    """A linear layer with a bias."""
    return Operations(matrix=tokens * in_size * out_size, additions=tokens * out_size)


def layer_norm(tokens: int, width: int) -> Operations:
    return Operations(norms=NORM * tokens * width)


def residual(tokens: int, width: int) -> Operations:
    """One addition a value: a residual, or an embedding of the position."""
    return Operations(additions=tokens * width)


def mlp(tokens: int, in_size: int, hidden_size: int, out_size: int) -> Operations:
    """Dense, gelu, dense."""
    gelu = Operations(activations=GELU * tokens * hidden_size)
    return dense(tokens, in_size, hidden_size) + gelu + dense(tokens, hidden_size, out_size)


def attention(queries: int, keys: int, width: int, num_heads: int) -> Operations:
    """The weights of `queries` over `keys` in every head, and the weighted sums; without projections."""
    return Operations(
        matrix=2 * queries * keys * width,
        softmaxes=SOFTMAX * num_heads * queries * keys,
        additions=queries * width,
    )


def encoder_block(
    tokens: int, width: int, num_heads: int, mlp_size: int, past: int = 0
) -> Operations:
    """x + Attention(LN x), then x + MLP(LN x), where attention also reaches `past` tokens in a cache."""
    norms_and_residuals = (layer_norm(tokens, width) + residual(tokens, width)) * 2
    projections = dense(tokens, width, 4 * width)  # to query, key and value, and back
    attended = attention(tokens, past + tokens, width, num_heads)
    return norms_and_residuals + projections + attended + mlp(tokens, width, mlp_size, width)


def cross_block(queries: int, keys: int, width: int, num_heads: int, mlp_size: int) -> Operations:
    """x + Attention(LN x; keys, values), then x + MLP(LN x), where keys and values are there already."""
    norms_and_residuals = (layer_norm(queries, width) + residual(queries, width)) * 2
    projections = dense(queries, width, 2 * width)  # to query, and back
    attended = attention(queries, keys, width, num_heads)
    return norms_and_residuals + projections + attended + mlp(queries, width, mlp_size, width)


def keys_values(tokens: int, width: int) -> Operations:
    """Of normalised tokens, which are to be attended to."""
    return layer_norm(tokens, width) + dense(tokens, width, 2 * width)


def encoder(tokens: int, width: int, num_layers: int, num_heads: int, mlp_size: int) -> Operations:
    """A Transformer: embedding of the position, `num_layers` blocks, layer norm."""
    blocks = encoder_block(tokens, width, num_heads, mlp_size) * num_layers
    return residual(tokens, width) + blocks + layer_norm(tokens, width)


def rotation(tokens: int, width: int) -> Operations:
    """Rotary embedding: two products and their sum for each value."""
    return Operations(additions=3 * tokens * width)


def relative_positions(
    queries: int, keys: int, ages: int, width: int, num_heads: int
) -> Operations:
    """Transformer-XL's: a projection of every age, queries with two biases, scores by age added to those by key."""
    by_age = Operations(matrix=ages * width * width + queries * ages * width)
    return (
        by_age + residual(2 * queries, width) + Operations(additions=2 * num_heads * queries * keys)
    )


def lstm_layer(tokens: int, width: int) -> Operations:
    """W x + a + U h + b for the four gates; then f c + i g, and o tanh(c)."""
    gates = dense(tokens, width, 4 * width) * 2 + residual(tokens, 4 * width)
    return gates + Operations(activations=4 * tokens * width)


def mixer(
    tokens: int, width: int, num_layers: int, token_mixing_size: int, mlp_size: int
) -> Operations:
    """An MLP-Mixer: x + MLP(LN x) along the tokens, then along the width; layer norm."""
    norms_and_residuals = (layer_norm(tokens, width) + residual(tokens, width)) * 2
    along_tokens = mlp(width, tokens, token_mixing_size, tokens)
    block = norms_and_residuals + along_tokens + mlp(tokens, width, mlp_size, width)
    return block * num_layers + layer_norm(tokens, width)


def mlp_stack(tokens: int, width: int, num_layers: int, mlp_size: int) -> Operations:
    """MLP(LN x) over and over, without residuals; layer norm."""
    layer = layer_norm(tokens, width) + mlp(tokens, width, mlp_size, width)
    return layer * num_layers + layer_norm(tokens, width)


def mlp_summary(tokens: int, summaries: int, width: int, bottleneck: int) -> Operations:
    """TokenLearner 1.1: weights by an MLP of the normalised tokens, softmax, weighted sums of the tokens."""
    weights = layer_norm(tokens, width) + mlp(tokens, width, bottleneck, summaries)
    softmax = Operations(softmaxes=SOFTMAX * tokens * summaries)
    return weights + softmax + Operations(matrix=tokens * summaries * width)


def attention_summary(tokens: int, summaries: int, width: int, num_heads: int) -> Operations:
    """Learned queries attend to the tokens: projections of the queries, to key and value, and back; attention."""
    of_queries = dense(summaries, width, 2 * width) + attention(summaries, tokens, width, num_heads)
    return of_queries + dense(tokens, width, 2 * width)


def query_summary(tokens: int, summaries: int, width: int) -> Operations:
    """TTM's eq. 2: learned queries are compared with the tokens themselves, which are then summed; no projections."""
    return attention(summaries, tokens, width, num_heads=1)


def pooled_summary(tokens: int, summaries: int, width: int) -> Operations:
    """Means of `summaries` runs of tokens, which overlap where they do not divide the tokens evenly."""
    starts = (k * tokens // summaries for k in range(summaries))
    ends = (-(-(k + 1) * tokens // summaries) for k in range(summaries))
    return Operations(additions=(sum(ends) - sum(starts) + summaries) * width)


def erase_add(memory: int, outputs: int, writes: int, width: int, bottleneck: int) -> Operations:
    """`writes` (T) write tokens: selection W over the slots, erase and add vectors E and A from the outputs.

    M prod_t (1 - W_t E_t) takes 3 T + 1 element-wise operations a value of the memory; mean_t (1 - W_t A_t) is a
    matrix product and 3 with the sum of both.
    """
    selection = layer_norm(memory, width) + mlp(memory, width, bottleneck, writes)
    softmax = Operations(softmaxes=SOFTMAX * memory * writes)
    vectors = layer_norm(outputs, width) + mlp(width, outputs, bottleneck, writes)
    vectors = (vectors + mlp(writes, width, bottleneck, width)) * 2
    erased_and_added = Operations(
        matrix=writes * memory * width, activations=(3 * writes + 1 + 3) * memory * width
    )
    return selection + softmax + vectors + erased_and_added
