"""The operations of the layers that temporal cores are made of, counted by hand from their sizes."""

from __future__ import annotations

from ttm.training.bench.flops.operations import Operations

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


def encoder(
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


def mixer(
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
