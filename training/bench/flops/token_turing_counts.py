"""The operations of one step of the Token Turing Machine, counted by hand, for all its variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.ttm.memory_write import WRITE_HIDDEN, WRITE_TOKENS
from ttm.policy.layers.summarizers import NUM_HEADS
from ttm.training.bench.flops import layer_counts as layers
from ttm.training.bench.flops.operations import Operations, StepOperations


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
    position = layers.residual(tokens, width) if config.positional_embedding else Operations()
    return position + SUMMARIZERS[config.summarizer](config, tokens, summaries, width)


def _read_by_attention(config: TokenTuringConfig, num_inputs: int, width: int) -> Operations:
    """Count the queries from the memory, keys and values of [M ‖ I], and the attention block."""
    read, tokens = config.process_size, config.memory_size + num_inputs
    queries = _summary(config, config.memory_size, read, width) + layers.residual(read, width)
    position = tokens if config.positional_embedding else 0
    context = layers.residual(position, width) + layers.keys_values(tokens, width)
    return (
        queries
        + context
        + layers.cross_block(read, tokens, width, config.num_heads, config.mlp_size)
    )


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
    gates = layers.layer_norm(slots, 2 * width) + layers.dense(slots, 2 * width, width)
    return gates + Operations(activations=3 * slots * width)


def _write_by_keeping(config: TokenTuringConfig, tokens: int, width: int) -> Operations:
    """Count the summary, and the biases of all logits."""
    slots = config.memory_size
    return _summary(config, tokens, slots, width) + layers.residual(tokens, slots)


SUMMARIZERS: Mapping[str, Callable[[TokenTuringConfig, int, int, int], Operations]] = (
    MappingProxyType(
        {
            "mlp": lambda c, tokens, k, width: layers.mlp_summary(tokens, k, width, c.bottleneck),
            "mha": lambda c, tokens, k, width: layers.attention_summary(
                tokens, k, width, NUM_HEADS
            ),
            "query": lambda c, tokens, k, width: layers.query_summary(tokens, k, width),
            "pooling": lambda c, tokens, k, width: layers.pooled_summary(tokens, k, width),
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
        "transformer": lambda c, tokens, width: layers.encoder(
            tokens, width, c.num_layers, c.num_heads, c.mlp_size, c.process_size
        ),
        "mixer": lambda c, tokens, width: layers.mixer(
            tokens, width, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda c, tokens, width: layers.mlp_stack(tokens, width, c.num_layers, c.mlp_size),
    }
)
"""Value of `processor` -> the count of its work on so many tokens."""

WRITES: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "summarize": lambda c, tokens, width: _summary(c, tokens, c.memory_size, width),
        "erase_add": lambda c, tokens, width: layers.erase_add(
            c.memory_size, c.process_size, WRITE_TOKENS, width, WRITE_HIDDEN
        ),
        "concatenate": lambda c, tokens, width: Operations(),
        "gated": _write_by_gates,
        "keep": _write_by_keeping,
        "ring": _write_by_ring,
    }
)
"""Value of `write` -> its count."""
