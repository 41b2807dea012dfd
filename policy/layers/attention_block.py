"""An attention layer whose keys and values are handed in, so that they can be kept from tick to tick.

Pre-LayerNorm and residual, with a residual feed-forward of its own. The caller decides what is seen: other tokens
(cross-attention), the tokens themselves (self-attention), a cache, all of it under a mask.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS
from ttm.policy.layers.transformer import head_size


class AttentionBlock(nn.Module):
    """x + Attention(LN x; keys, values), then x + MLP(LN x).

    Cross-attention: `block(x, *block.keys_values(context))`; self-attention: `block(x, *block.keys_values(x))`.
    """

    def __init__(
        self, width: int, num_heads: int, mlp_size: int, where: str = "the attention block"
    ) -> None:
        """where: what the error names if the heads do not share the width evenly."""
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size(width, num_heads, where)
        self.query_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.query = nn.Linear(width, width)
        self.context_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.key_value = nn.Linear(width, 2 * width)  # one matrix product for both
        self.out = nn.Linear(width, width)
        for weight in (self.query.weight, *self.key_value.weight.chunk(2), self.out.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.query, self.key_value, self.out):
            nn.init.zeros_(layer.bias)
        self.mlp_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, mlp_size, width)

    def keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """context: (..., D), which is normalised here -> keys and values, (..., D) each."""
        keys, values = self.key_value(self.context_norm(context)).chunk(2, dim=-1)
        return keys, values

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """x: (B, S, D), keys and values: (B, P, D), mask: (B or 1, 1, S, P) bool, True where seen -> (B, S, D)."""
        mixed = F.scaled_dot_product_attention(
            self.queries(x), self.heads(keys), self.heads(values), attn_mask=mask
        )
        return self.finish(x, mixed)

    def queries(self, x: Tensor) -> Tensor:
        """x: (B, S, D), which is normalised here -> (B, nh, S, hs)."""
        return self.heads(self.query(self.query_norm(x)))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """x: (B, S, D), mixed: (B, nh, S, hs), what attention gave for its queries -> (B, S, D)."""
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        x = x + self.mlp(self.mlp_norm(x))
        return x

    def heads(self, x: Tensor) -> Tensor:
        """x: (B, S, D) -> (B, nh, S, hs)."""
        return x.reshape(*x.shape[:2], self.num_heads, self.head_size).transpose(1, 2)
