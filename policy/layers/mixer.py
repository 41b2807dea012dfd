"""The MLP-Mixer that processes TTM's read tokens (Tolstikhin et al. 2021, as in Scenic).

Pre-LayerNorm, no position embedding, LayerNorm at the end, no dropout.
"""

from __future__ import annotations

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS


class MixerBlock(nn.Module):
    """x + MLP over the tokens of LN x, channel by channel; then x + MLP over the channels of LN x."""

    def __init__(self, width: int, num_tokens: int, token_mixing_size: int, mlp_size: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.token_mixing = Mlp(num_tokens, token_mixing_size, num_tokens)
        self.channel_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.channel_mixing = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, R, D) -> (B, R, D)."""
        x = x + self.token_mixing(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel_mixing(self.channel_norm(x))
        return x


class MixerProcessor(nn.Module):
    """TTM's Process(Z) by an MLP-Mixer over the `num_tokens` read tokens."""

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, token_mixing_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            MixerBlock(width, num_tokens, token_mixing_size, mlp_size) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, R, D) -> (B, R, D)."""
        x = tokens
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out
