"""One step of each temporal core, counted by hand from its configuration: closed formulas, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.causal_transformer import CausalTransformerConfig
from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.lstm import LstmConfig
from ttm.policy.cores.recurrent_transformer import RecurrentTransformerConfig
from ttm.policy.cores.sequence_core import Reading
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.tlb.temporal_latent_bottleneck import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.ttm.memory_write import WRITE_HIDDEN, WRITE_TOKENS
from ttm.policy.cores.windowed import FrameStackingConfig, TemporalMixerConfig, WindowedConfig
from ttm.policy.layers.summarizers import NUM_HEADS
from ttm.training.bench.flops import operations as ops
from ttm.training.bench.flops.operations import Operations, StepOperations


def step_by_hand(config: CoreConfig, width: int, num_inputs: int) -> StepOperations:
    """The operations of one step of the core that `config.build(width, num_inputs)` makes, at batch 1."""
    return COUNTS[type(config)](config, width, num_inputs)


def token_turing(config: TokenTuringConfig, width: int, num_inputs: int) -> StepOperations:
    """Read [M ‖ I] to r tokens, process them, write [M ‖ I ‖ O] to m tokens."""
    tokens = config.memory_size + num_inputs
    return StepOperations(
        read=_summary(config, tokens, config.process_size, width),
        process=PROCESSORS[config.processor](config, width),
        write=WRITES[config.write](config, tokens + config.process_size, width),
    )


def _summary(config: TokenTuringConfig, tokens: int, summaries: int, width: int) -> Operations:
    """S_k, with the outer embedding of the position if there is one."""
    position = ops.residual(tokens, width) if config.positional_embedding else Operations()
    return position + SUMMARIZERS[config.summarizer](config, tokens, summaries, width)


SUMMARIZERS: Mapping[str, Callable[[TokenTuringConfig, int, int, int], Operations]] = (
    MappingProxyType(
        {
            "mlp": lambda c, tokens, k, width: ops.mlp_summary(tokens, k, width, c.bottleneck),
            "mha": lambda c, tokens, k, width: ops.attention_summary(tokens, k, width, NUM_HEADS),
            "query": lambda c, tokens, k, width: ops.query_summary(tokens, k, width),
            "pooling": lambda c, tokens, k, width: ops.pooled_summary(tokens, k, width),
        }
    )
)

PROCESSORS: Mapping[str, Callable[[TokenTuringConfig, int], Operations]] = MappingProxyType(
    {
        "transformer": lambda c, width: ops.encoder(
            c.process_size, width, c.num_layers, c.num_heads, c.mlp_size
        ),
        "mixer": lambda c, width: ops.mixer(
            c.process_size, width, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda c, width: ops.mlp_stack(c.process_size, width, c.num_layers, c.mlp_size),
    }
)

WRITES: Mapping[str, Callable[[TokenTuringConfig, int, int], Operations]] = MappingProxyType(
    {
        "summarize": lambda c, tokens, width: _summary(c, tokens, c.memory_size, width),
        "erase_add": lambda c, tokens, width: ops.erase_add(
            c.memory_size, c.process_size, WRITE_TOKENS, width, WRITE_HIDDEN
        ),
        "concatenate": lambda c, tokens, width: Operations(),
    }
)


def lstm(config: LstmConfig, width: int, num_inputs: int) -> StepOperations:
    """Every layer over the r slots, between two layer norms."""
    slots = config.process_size
    ends = ops.residual(slots, width) + ops.layer_norm(slots, width) * 2
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ends + ops.lstm_layer(slots, width) * config.num_layers,
    )


def causal_transformer(
    config: CausalTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """The r new tokens attend to the window, whose keys are turned anew at every tick."""
    new, in_window = config.process_size, config.process_size * config.window
    block = ops.encoder_block(new, width, config.num_heads, config.mlp_size, past=in_window - new)
    block += ops.rotation(new, width) + ops.rotation(in_window, width)
    ends = ops.residual(new, width) + ops.layer_norm(new, width)
    return StepOperations(
        read=_read(config, width, num_inputs), process=ends + block * config.num_layers
    )


def recurrent_transformer(
    config: RecurrentTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """m state tokens and r read tokens through one encoder."""
    tokens = config.memory_size + config.process_size
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ops.encoder(tokens, width, config.num_layers, config.num_heads, config.mlp_size),
    )


def frame_stacking(config: FrameStackingConfig, width: int, num_inputs: int) -> StepOperations:
    """An encoder over the tokens of the window."""
    encoder = ops.encoder(
        config.num_tokens, width, config.num_layers, config.num_heads, config.mlp_size
    )
    return _windowed(config, width, num_inputs, encoder)


def temporal_mixer(config: TemporalMixerConfig, width: int, num_inputs: int) -> StepOperations:
    """A Mixer over the tokens of the window."""
    mixer = ops.mixer(
        config.num_tokens, width, config.num_layers, config.token_mixing_size, config.mlp_size
    )
    return _windowed(config, width, num_inputs, mixer)


def latent_bottleneck(
    config: TemporalLatentBottleneckConfig, width: int, num_inputs: int
) -> StepOperations:
    """r new tokens attend to the K places of the chunk and to N latents, which are worked out anew at every tick."""
    new, chunk = config.process_size, config.process_size * config.chunk_size
    sizes = (width, config.num_heads, config.mlp_size)
    crossings = config.num_layers // config.cross_every
    layers = (ops.keys_values(new, width) + ops.cross_block(new, chunk, *sizes)) * config.num_layers
    layers += ops.cross_block(new, config.num_latents, *sizes) * crossings
    update = ops.keys_values(chunk, width) + ops.cross_block(config.num_latents, chunk, *sizes)
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ops.residual(new, width) + layers + ops.layer_norm(new, width),
        write=update + ops.keys_values(config.num_latents, width) * crossings,
    )


def hourglass(config: HourglassConfig, width: int, num_inputs: int) -> StepOperations:
    """Every scale's layers and what leads to the next, for one element: coarse ones are worked out at every tick."""
    hierarchy, new = parse_hierarchy(config.hierarchy), config.process_size
    *around, innermost = hierarchy.stages
    process = ops.residual(new, width) + ops.layer_norm(new, width)
    process += hourglass_attention(config, width, config.window) * innermost.num_layers
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        process += hourglass_attention(config, width, config.window) * (2 * stage.num_layers)
        process += SHORTENINGS[config.pooling](config, width, factor)
        process += UPSAMPLINGS[config.upsampling](config, width, factor) + ops.residual(new, width)
    return StepOperations(read=_read(config, width, num_inputs), process=process)


def hourglass_attention(
    config: HourglassConfig, width: int, elements: int, spacing: int = 1
) -> Operations:
    """r new keys and values, then r tokens attend to those of `elements` elements, which are `spacing` apart."""
    new, seen = config.process_size, config.process_size * elements
    block = ops.keys_values(new, width) + ops.cross_block(
        new, seen, width, config.num_heads, config.mlp_size
    )
    if config.position == "rotary":
        return block + ops.rotation(new, width) + ops.rotation(seen, width)
    return block + ops.relative_positions(
        new, seen, config.window * spacing, width, config.num_heads
    )


SHORTENINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "average": lambda c, width, k: ops.residual(k * c.process_size, width),
        "linear": lambda c, width, k: ops.dense(c.process_size, k * width, width),
        "attention": lambda c, width, k: (
            ops.residual(k * c.process_size, width) + hourglass_attention(c, width, c.window)
        ),
    }
)

UPSAMPLINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "repeat": lambda c, width, k: Operations(),
        "linear": lambda c, width, k: ops.dense(c.process_size, width, k * width),
        "attention": lambda c, width, k: (
            ops.dense(c.process_size, width, k * width)
            + ops.residual(c.process_size, width)
            + hourglass_attention(c, width, c.window + 1, spacing=k)
        ),
    }
)


def _windowed(
    config: WindowedConfig, width: int, num_inputs: int, processor: Operations
) -> StepOperations:
    """The newest tick is read, the embedding of their age is added to all, all are processed."""
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ops.residual(config.num_tokens, width) + processor,
    )


def _read(config: Reading, width: int, num_inputs: int) -> Operations:
    """What all sequence models begin with: N tokens, with an embedding of the position, to r."""
    summary = ops.mlp_summary(num_inputs, config.process_size, width, config.bottleneck)
    return ops.residual(num_inputs, width) + summary


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
"""Configuration -> its count. A new core needs a line here (a test says so)."""
