"""The Token Turing Machine (Ryoo et al. 2022, https://arxiv.org/abs/2211.09119), as published.

At every tick the machine reads r tokens from its memory M (m tokens) and the inputs I (n tokens),
processes them, and writes its memory:

    Z  = S_r([M ‖ I])              read      (eq. 4)
    O  = Process(Z)                process   a Transformer encoder
    M' = S_m([M ‖ I ‖ O])          write     (eq. 5)

S_k summarises any number of tokens to k (eq. 1 and 3). Position embeddings tell it the tokens apart.
Eq. 5 of the paper has the order [M ‖ O ‖ I]; the authors' code, whose weights `load_scenic` reads,
has [M ‖ I ‖ O]. Names are those of that code (Scenic, projects/token_turing).

Other summarisers, reads, writes and processors, the paper's and ours, are in `ttm_variants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.errors import UserError
from ttm.policy.layers import Mlp, TransformerEncoder, layer_norm


@dataclass(frozen=True)
class TokenTuringConfig(CoreConfig):
    """The sizes and kinds of a machine. The paper's robot setting has m = 96, r = 16 and 8 layers."""

    smallest: ClassVar[Mapping[str, int]] = {"num_layers": 0, "gate_max_ticks": 2}

    memory_size: int = 16
    """m, memory tokens."""
    process_size: int = 8
    """r, tokens that are read, processed and passed to the action head."""
    num_layers: int = 2
    """Layers of the processor."""
    num_heads: int = 4
    """Heads of the Transformer; the summariser "mha" always has 8."""
    mlp_size: int = 512
    """Hidden width of the Transformer's MLPs, of the Mixer's over channels, and of the plain MLPs."""
    bottleneck: int = 64
    """Hidden width of the summarisers' MLPs."""
    positional_embedding: bool = True
    """Whether the summarisers of read and write add a position embedding. The Transformer has one of
    its own in any case, the other processors have none."""
    summarizer: Literal["mlp", "mha", "query", "pooling"] = "mlp"
    """S_k. mlp: weights by an MLP of each token (eq. 3). mha: learned queries in 8 heads, with
    projections, so that the memory is not bounded and may overflow in a training. query: learned queries
    in one head (eq. 2). pooling: means of neighbouring tokens."""
    processor: Literal["transformer", "mixer", "mlp"] = "transformer"
    """Process: a Transformer encoder, an MLP-Mixer, or an MLP of each token."""
    write: Literal["summarize", "erase_add", "concatenate", "gated", "ring"] = "summarize"
    """summarize: by S_m. erase_add: as the Neural Turing Machine. concatenate: the newest m tokens of
    [M ‖ O]. Ours: gated mixes each slot with S_m by a learned gate; ring does so with one slot a tick."""
    token_mixing_size: int = 128
    """Hidden width of the Mixer's MLPs over tokens."""
    read: Literal["summarize", "attend"] = "summarize"
    """summarize: by S_r. attend (ours): queries made from the memory attend to [M ‖ I]."""
    process_memory: bool = False
    """Ours: whether Process sees the memory beside the r tokens, the first of which are the outputs."""
    write_outputs: bool = True
    """False (ours): the write sees [M ‖ I] alone, so that training reads and processes all ticks at once."""
    gate_max_ticks: int = 100
    """The longest time scale, in ticks, of the gates of write=gated and ring at the start."""
    memory: bool = True
    """False: every tick starts from the initial memory. The same network is then memoryless."""
    initial_memory: Literal["zeros", "learned"] = "zeros"
    """The memory at the start of an episode. learned: m tokens, trained with the other weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.write_outputs and self.write in ("erase_add", "concatenate"):
            raise UserError(f"write={self.write} needs write_outputs=true; or give gated or ring")
        if self.write == "erase_add" and self.initial_memory == "zeros":
            raise UserError("write=erase_add keeps equal slots equal; give initial_memory=learned")

    def build(self, width: int, num_inputs: int) -> TokenTuringMachine:
        if self.memory and self.write_outputs and not self.process_memory:
            return TokenTuringMachine(width, num_inputs, self)
        return _variants().make_machine(width, num_inputs, self)


class Summarizer(nn.Module):
    """S_k(V): K sums of the P tokens of V, weighted by the softmax of `logits` over P (eq. 1).

    K is fixed at construction and P is free.
    """

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logit of each token in each summary: (B, P, D) to (B, P, K)."""
        raise NotImplementedError

    def weights(self, tokens: Tensor) -> Tensor:
        """Return the weight of each token in each summary, (B, P, K), which sums to one over P."""
        return self.logits(tokens).softmax(dim=1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Summarise tokens (B, P, D) to (B, K, D)."""
        return self.weights(tokens).transpose(1, 2) @ tokens


class TokenLearner(Summarizer):
    """Weights by an MLP of each token (eq. 3): TokenLearner 1.1 (Ryoo et al. 2021)."""

    def __init__(self, width: int, num_tokens: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.mlp = Mlp(width, bottleneck, num_tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.mlp(self.norm(tokens))


class PositionedSummarizer(nn.Module):
    """S_k of several groups of tokens: concatenated, with a learned position embedding added.

    The embedding is part of the tokens that are summed. Without it the number of tokens is free.
    """

    def __init__(
        self, summarizer: Summarizer, width: int, num_tokens: int, positional_embedding: bool
    ) -> None:
        """num_tokens: P, the tokens of all groups together."""
        super().__init__()
        self.summarizer = summarizer
        self.position = None
        if positional_embedding:
            self.position = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)

    def positioned(self, *groups: Tensor) -> Tensor:
        """Return the tokens that are summed, (B, P, D)."""
        tokens = torch.cat(groups, dim=1)
        return tokens if self.position is None else tokens + self.position

    def weights(self, *groups: Tensor) -> Tensor:
        """Return the weight of each token in each summary, (B, P, K); see `Summarizer.weights`."""
        return self.summarizer.weights(self.positioned(*groups))

    def forward(self, *groups: Tensor) -> Tensor:
        """Summarise groups (B, P_i, D) to (B, K, D)."""
        return self.summarizer(self.positioned(*groups))


def make_summarizer(
    width: int, num_tokens: int, num_summaries: int, config: TokenTuringConfig
) -> PositionedSummarizer:
    """Return S_k from P = `num_tokens` to K = `num_summaries` tokens, of the kind of `config`."""
    if config.summarizer == "mlp":
        made: Summarizer = TokenLearner(width, num_summaries, config.bottleneck)
    else:
        made = _variants().SUMMARIZERS[config.summarizer](width, num_summaries)
    return PositionedSummarizer(made, width, num_tokens, config.positional_embedding)


def make_read(width: int, num_inputs: int, config: TokenTuringConfig) -> nn.Module:
    """Return the read, (memory, inputs) -> (B, r, D): S_r([M ‖ I]) (eq. 4)."""
    if config.read == "summarize":
        return make_summarizer(width, config.memory_size + num_inputs, config.process_size, config)
    return _variants().READS[config.read](width, num_inputs, config)


def make_processor(width: int, num_tokens: int, config: TokenTuringConfig) -> nn.Module:
    """Return the processor, which maps `num_tokens` tokens, or the first r of them."""
    if config.processor == "transformer":
        sizes = config.num_layers, config.num_heads, config.mlp_size, config.process_size
        return TransformerEncoder(width, num_tokens, *sizes)
    return _variants().PROCESSORS[config.processor](width, num_tokens, config)


def make_write(width: int, num_inputs: int, config: TokenTuringConfig) -> nn.Module:
    """Return the write, (memory, inputs, outputs) -> (B, m, D): S_m([M ‖ I ‖ O]) (eq. 5)."""
    if config.write == "summarize":
        tokens = config.memory_size + num_inputs + config.process_size * config.write_outputs
        return make_summarizer(width, tokens, config.memory_size, config)
    return _variants().WRITES[config.write](width, num_inputs, config)


def _variants() -> Any:
    """Return the module `ttm_variants`, which is imported when a variant is chosen."""
    return import_module("ttm.policy.cores.ttm_variants")


class TokenTuringMachineUnit(nn.Module):
    """One step of the machine: read, process, write."""

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        """num_inputs: n. Without positional embedding any other n works as well."""
        super().__init__()
        processed = config.process_size + config.memory_size * config.process_memory
        self.read = make_read(width, num_inputs, config)
        self.process = make_processor(width, processed, config)
        self.write = make_write(width, num_inputs, config)

    def forward(self, memory_tokens: Tensor, input_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Map memory (B, m, D) and inputs (B, n, D) to the new memory and the outputs (B, r, D)."""
        read_tokens = self.read(memory_tokens, input_tokens)
        output_tokens = self.process(read_tokens)
        return self.write(memory_tokens, input_tokens, output_tokens), output_tokens


class TokenTuringMachine(TemporalCore):
    """A unit whose memory is the state: {"memory": (B, m, D)}."""

    unit_class: type[TokenTuringMachineUnit] = TokenTuringMachineUnit

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.num_outputs = config.process_size
        self.memory_shape = (config.memory_size, width)
        self.unit = self.unit_class(width, num_inputs, config)
        self.initial_memory = None
        if config.initial_memory == "learned":
            self.initial_memory = nn.Parameter(torch.randn(self.memory_shape) * 0.02)

    def initial_state(self, batch_size: int) -> CoreState:
        if self.initial_memory is not None:
            return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}
        return {"memory": next(self.parameters()).new_zeros(batch_size, *self.memory_shape)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        memory, outputs = self.unit(state["memory"], tokens)
        return outputs, {"memory": memory}
