"""The MLP-Mixer (Tolstikhin et al. 2021), as in Scenic.

It normalises before each MLP, has no position embedding and no dropout, and ends with a LayerNorm.
"""

from __future__ import annotations

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm


class MixerBlock(nn.Module):
    """Add an MLP over the tokens of LN x, per channel, then an MLP over the channels of LN x."""

    def __init__(self, width: int, num_tokens: int, token_mixing_size: int, mlp_size: int) -> None:
        super().__init__()
        self.token_norm = layer_norm(width)
        self.token_mixing = Mlp(num_tokens, token_mixing_size, num_tokens)
        self.channel_norm = layer_norm(width)
        self.channel_mixing = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (B, N, D) to (B, N, D)."""
        x = x + self.token_mixing(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel_mixing(self.channel_norm(x))
        return x


class MlpMixer(nn.Module):
    """An MLP-Mixer over `num_tokens` tokens."""

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, token_mixing_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            MixerBlock(width, num_tokens, token_mixing_size, mlp_size) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D)."""
        x = tokens
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out
