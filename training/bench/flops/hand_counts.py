"""The operations of one step of each temporal core, counted by hand.

The counts are formulas of the configuration and need no tensors. `COUNTS` is the table of them. A
core without an entry is counted by PyTorch's counter alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ttm.policy.cores.causal_transformer import CausalTransformerConfig
from ttm.policy.cores.frame_stacking import FrameStackingConfig
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.lstm import LstmConfig
from ttm.policy.cores.mixer import TemporalMixerConfig
from ttm.policy.cores.recurrent_transformer import RecurrentTransformerConfig
from ttm.policy.cores.sequence_core import ReadSizes
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.tlb.temporal_latent_bottleneck import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.cores.windowed_core import WindowedConfig
from ttm.training.bench.flops import layer_counts as layers
from ttm.training.bench.flops.hourglass_counts import hourglass_process
from ttm.training.bench.flops.operations import Operations, StepOperations
from ttm.training.bench.flops.token_turing_counts import token_turing


def step_by_hand(config: CoreConfig, width: int, num_inputs: int) -> StepOperations | None:
    """Count one step, at batch 1, of the core that `config.build(width, num_inputs)` makes.

    Returns None for a core that is not in `COUNTS`.
    """
    count = COUNTS.get(type(config))
    return None if count is None else count(config, width, num_inputs)


def lstm(config: LstmConfig, width: int, num_inputs: int) -> StepOperations:
    """Count all layers over the r slots, and the layer norms before and after them."""
    slots = config.process_size
    ends = layers.residual(slots, width) + layers.layer_norm(slots, width) * 2
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=ends + layers.lstm_layer(slots, width) * config.num_layers,
    )


def causal_transformer(
    config: CausalTransformerConfig, width: int, num_inputs: int
) -> StepOperations:
    """Count r new tokens that attend to the window, whose keys are rotated again at every tick."""
    new, in_window = config.process_size, config.process_size * config.window
    block = layers.encoder_block(
        new, width, config.num_heads, config.mlp_size, past=in_window - new
    )
    block += layers.rotation(new, width) + layers.rotation(in_window, width)
    ends = layers.residual(new, width) + layers.layer_norm(new, width)
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
        process=layers.encoder(tokens, width, config.num_layers, config.num_heads, config.mlp_size),
    )


def frame_stacking(config: FrameStackingConfig, width: int, num_inputs: int) -> StepOperations:
    """Count an encoder over the tokens of the window."""
    encoder = layers.encoder(
        config.num_tokens, width, config.num_layers, config.num_heads, config.mlp_size
    )
    return _windowed(config, width, num_inputs, encoder)


def temporal_mixer(config: TemporalMixerConfig, width: int, num_inputs: int) -> StepOperations:
    """Count an MLP-Mixer over the tokens of the window."""
    mixer = layers.mixer(
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
    own = layers.keys_values(new, width) + layers.cross_block(new, chunk, *sizes)
    crossed = layers.cross_block(new, config.num_latents, *sizes)
    update = layers.keys_values(chunk, width) + layers.cross_block(
        config.num_latents, chunk, *sizes
    )
    return StepOperations(
        read=_read(config, width, num_inputs),
        process=layers.residual(new, width)
        + own * config.num_layers
        + crossed * crossings
        + layers.layer_norm(new, width),
        write=update + layers.keys_values(config.num_latents, width) * crossings,
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
        process=layers.residual(config.num_tokens, width) + processor,
    )


def _read(config: ReadSizes, width: int, num_inputs: int) -> Operations:
    """Count the first part of all sequence models: N tokens, with a positional embedding, become r."""
    summary = layers.mlp_summary(num_inputs, config.process_size, width, config.bottleneck)
    return layers.residual(num_inputs, width) + summary


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
