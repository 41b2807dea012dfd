"""Attention that knows how far back each key lies: relative (Transformer-XL, Dai et al. 2019) or rotary (RoFormer).

Both see ages alone, never where in an episode the robot is, so that a state needs no growing count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.causal_transformer import LONGEST_WAVE, rotate
from ttm.policy.cores.hourglass.elements import Carried, Elements, Recent, Sight
from ttm.policy.errors import UserError
from ttm.policy.layers.attention_block import AttentionBlock


class Position(nn.Module, ABC):
    """Brings positions into attention."""

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """query: (B, nh, S, hs), keys: (B, nh, P, hs) -> the same, and the mask (bool) or what is added to scores."""


class RelativePosition(Position):
    """Scores (q + u) k + (q + v) W R_age, with sines R of the age and two learned biases for each head."""

    def __init__(self, width: int, num_heads: int, longest: int) -> None:
        """longest: ages that can be seen are less."""
        super().__init__()
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.age.weight)
        cosine, sine = _waves(torch.arange(longest), width)
        self.register_buffer("sines", torch.cat([sine, cosine], dim=1).float(), persistent=False)

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """See `Position`."""
        num_heads, size = query.shape[1], query.shape[3]
        ages = (
            self.age(self.sines).unflatten(-1, (num_heads, size)).transpose(0, 1)
        )  # (nh, ages, hs)
        by_age = (query + self.age_bias) @ ages.transpose(1, 2)  # (B, nh, S, ages)
        wanted = sight.age.clamp(0, ages.shape[1] - 1).unsqueeze(1)
        bias = by_age.gather(3, wanted.expand(len(query), num_heads, -1, -1)) * size**-0.5
        query = query + self.content_bias
        return query, keys, bias.masked_fill(~sight.mask, -torch.inf).to(query.dtype)


class RotaryPosition(Position):
    """Turns queries and keys by where they are, so that their product depends on the difference."""

    def __init__(self, width: int, num_heads: int, longest: int) -> None:
        """longest: not needed."""
        super().__init__()
        if width // num_heads % 2:
            raise UserError(
                f"rotary positions need heads of an even size, and {num_heads} heads have {width // num_heads} of "
                f"{width} channels each; give another num_heads, or position=relative"
            )

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """See `Position`."""
        return _turn(query, sight.query_at), _turn(keys, sight.key_at), sight.mask


POSITIONS: Mapping[str, Callable[[int, int, int], Position]] = MappingProxyType(
    {"relative": RelativePosition, "rotary": RotaryPosition}
)


def _turn(x: Tensor, at: Tensor) -> Tensor:
    """x: (B, nh, S, hs), at: (B or 1, S)."""
    return rotate(x, tuple(part.unsqueeze(1).to(x.dtype) for part in _waves(at, x.shape[-1])))


def _waves(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """at: (...) int64 -> cosine and sine, (..., size / 2), in float64: float32 would round large angles."""
    pairs = torch.arange((size + 1) // 2, device=at.device, dtype=torch.float64)
    angle = at.unsqueeze(-1).to(torch.float64) * LONGEST_WAVE ** (-2 * pairs / size)
    return angle.cos(), angle.sin()


@dataclass(frozen=True)
class AttentionSizes:
    """What all attention of a model has in common."""

    width: int
    num_heads: int
    mlp_size: int
    window: int
    """Elements of the keys' scale that a query sees, the newest included."""
    position: str
    """One of `POSITIONS`."""


class CarriedAttention(nn.Module):
    """An attention block with positions, whose keys and values of earlier elements are kept in the state."""

    def __init__(self, name: str, sizes: AttentionSizes, kept: int, spacing: int = 1) -> None:
        """kept: elements before a window's first; spacing: elements of the queries' scale for one of the keys'."""
        super().__init__()
        self.block = AttentionBlock(sizes.width, sizes.num_heads, sizes.mlp_size, "the Hourglass")
        longest = sizes.window * spacing
        self.position = POSITIONS[sizes.position](sizes.width, sizes.num_heads, longest)
        self.kept = Recent(name, kept, 2 * sizes.width)

    def forward(
        self, x: Tensor, context: Tensor, elements: Elements, sight: Sight, carried: Carried
    ) -> Tensor:
        """x: (B, S, r, D); context: (B, E, r, D) of `elements`, to which those from before come -> (B, S, r, D)."""
        new = torch.cat(self.block.keys_values(context), dim=-1)
        keys, values = self.kept(new, elements, carried).flatten(1, 2).chunk(2, dim=-1)
        rows = x.flatten(1, 2)
        query, keys, mask = self.position(self.block.queries(rows), self.block.heads(keys), sight)
        mixed = F.scaled_dot_product_attention(
            query, keys, self.block.heads(values), attn_mask=mask
        )
        return self.block.finish(rows, mixed).view_as(x)
