"""The unit of the Token Turing Machine in plain PyTorch, as the baseline of the timing.

It is written from the paper, and it is as fast as plain PyTorch allows: query, key and value share
one matrix product, and attention uses PyTorch's fused kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.ttm.unit import TokenTuringUnit
from ttm.policy.cores.ttm.unit_config import UnitConfig

EPS = 1e-6


class PlainSummarizer(nn.Module):
    """Sums of the tokens, weighted by the softmax of an MLP of each token."""

    def __init__(self, width: int, bottleneck: int, num_tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.hidden = nn.Linear(width, bottleneck)
        self.out = nn.Linear(bottleneck, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D)."""
        weights = self.out(F.gelu(self.hidden(self.norm(tokens)), approximate="tanh")).softmax(
            dim=1
        )
        return weights.transpose(1, 2) @ tokens


class PlainBlock(nn.Module):
    """A pre-norm Transformer block."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=EPS)
        self.mlp_hidden = nn.Linear(width, mlp_size)
        self.mlp_out = nn.Linear(mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, R, D) -> (B, R, D)."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_out(F.gelu(self.mlp_hidden(self.mlp_norm(x)), approximate="tanh"))


class PlainProcessor(nn.Module):
    """A Transformer encoder with a positional embedding."""

    def __init__(self, width: int, config: UnitConfig) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, config.process_size, width))
        self.blocks = nn.Sequential(
            *(
                PlainBlock(width, config.num_heads, config.mlp_size)
                for _ in range(config.num_layers)
            )
        )
        self.norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, R, D) -> (B, R, D)."""
        out: Tensor = self.norm(self.blocks(tokens + self.position))
        return out


class PlainUnit(nn.Module):
    """Read, process, write, without outer positional embeddings."""

    def __init__(self, width: int, config: UnitConfig) -> None:
        super().__init__()
        self.read = PlainSummarizer(width, config.bottleneck, config.process_size)
        self.process = PlainProcessor(width, config)
        self.write = PlainSummarizer(width, config.bottleneck, config.memory_size)

    @torch.no_grad()
    def copy_weights(self, unit: TokenTuringUnit) -> None:
        """Copy the weights of the project's unit, whose parameters come in the same order."""
        for mine, theirs in zip(self.parameters(), unit.parameters(), strict=True):
            assert mine.shape == theirs.shape
            mine.copy_(theirs)

    def forward(self, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """memory: (B, m, D), inputs: (B, N, D) -> new memory (B, m, D), outputs (B, r, D)."""
        outputs = self.process(self.read(torch.cat([memory, inputs], dim=1)))
        return self.write(torch.cat([memory, inputs, outputs], dim=1)), outputs
