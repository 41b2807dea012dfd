"""The operations of one step of the Token Turing Machine, counted by hand, for all variants of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.ttm.memory_write import WRITE_HIDDEN, WRITE_TOKENS
from ttm.policy.layers.summarizers import NUM_HEADS
from ttm.training.bench.flops import layer_counts as layers
from ttm.training.bench.flops.operations import Operations, StepOperations


def token_turing(config: TokenTuringConfig, width: int, num_inputs: int) -> StepOperations:
    """Count a step: read [M ‖ I] to r tokens, process them, write [M ‖ I ‖ O] to m tokens."""
    tokens = config.memory_size + num_inputs
    return StepOperations(
        read=_summary(config, tokens, config.process_size, width),
        process=PROCESSORS[config.processor](config, width),
        write=WRITES[config.write](config, tokens + config.process_size, width),
    )


def _summary(config: TokenTuringConfig, tokens: int, summaries: int, width: int) -> Operations:
    """Count S_k, and the outer positional embedding if there is one."""
    position = layers.residual(tokens, width) if config.positional_embedding else Operations()
    return position + SUMMARIZERS[config.summarizer](config, tokens, summaries, width)


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

PROCESSORS: Mapping[str, Callable[[TokenTuringConfig, int], Operations]] = MappingProxyType(
    {
        "transformer": lambda c, width: layers.encoder(
            c.process_size, width, c.num_layers, c.num_heads, c.mlp_size
        ),
        "mixer": lambda c, width: layers.mixer(
            c.process_size, width, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda c, width: layers.mlp_stack(c.process_size, width, c.num_layers, c.mlp_size),
    }
)
"""Value of `processor` -> its count."""

WRITES: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "summarize": lambda c, tokens, width: _summary(c, tokens, c.memory_size, width),
        "erase_add": lambda c, tokens, width: layers.erase_add(
            c.memory_size, c.process_size, WRITE_TOKENS, width, WRITE_HIDDEN
        ),
        "concatenate": lambda c, tokens, width: Operations(),
    }
)
"""Value of `write` -> its count."""
