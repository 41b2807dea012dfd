"""Attention that knows the age of each key.

Ages enter as in Transformer-XL (relative, Dai et al. 2019) or as in RoFormer (rotary, Su et al.
2021). Both use ages alone and not the position in the episode, so the state needs no growing count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.hourglass.elements import Carried, Elements, Recent, Sight
from ttm.policy.errors import UserError
from ttm.policy.layers.attention import AttentionBlock
from ttm.policy.layers.rotary import rotate, waves


class Position(nn.Module, ABC):
    """A way to use positions in attention."""

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys that hold positions, and the mask of attention.

        query: (B, nh, S, hs); keys: (B, nh, P, hs). The mask is bool, or a bias of the scores.
        """


class RelativePosition(Position):
    """Scores (q + u) k + (q + v) W R_age, as in Transformer-XL.

    R are sines and cosines of the age; u and v are learned for each head.
    """

    def __init__(self, width: int, num_heads: int, longest: int) -> None:
        """`longest` exceeds all ages that can be seen."""
        super().__init__()
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age_bias = nn.Parameter(torch.zeros(num_heads, 1, width // num_heads))
        self.age = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.age.weight)
        cosine, sine = waves(torch.arange(longest), width)
        self.register_buffer("sines", torch.cat([sine, cosine], dim=1).float(), persistent=False)

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """See `Position.forward`."""
        num_heads, size = query.shape[1], query.shape[3]
        ages = self.age(self.sines).unflatten(-1, (num_heads, size))
        ages = ages.transpose(0, 1)  # (nh, ages, hs)
        by_age = (query + self.age_bias) @ ages.transpose(1, 2)  # (B, nh, S, ages)
        wanted = sight.age.clamp(0, ages.shape[1] - 1).unsqueeze(1)
        bias = by_age.gather(3, wanted.expand(len(query), num_heads, -1, -1)) * size**-0.5
        query = query + self.content_bias
        return query, keys, bias.masked_fill(~sight.mask, -torch.inf).to(query.dtype)


class RotaryPosition(Position):
    """Rotation of queries and keys by their positions, as in RoFormer."""

    def __init__(self, width: int, num_heads: int, longest: int) -> None:
        """`longest` is not used."""
        super().__init__()
        if width // num_heads % 2:
            raise UserError(
                f"rotary positions need heads of an even size, and {num_heads} heads have "
                f"{width // num_heads} of {width} channels each; give another num_heads, or position=relative"
            )

    def forward(self, query: Tensor, keys: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """See `Position.forward`."""
        return _rotate(query, sight.query_at), _rotate(keys, sight.key_at), sight.mask


POSITIONS: Mapping[str, Callable[[int, int, int], Position]] = MappingProxyType(
    {"relative": RelativePosition, "rotary": RotaryPosition}
)
"""The value of `HourglassConfig.position` -> its class."""


def _rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate x, (B, nh, S, hs), by its positions, (B or 1, S)."""
    cosine, sine = (part.unsqueeze(1).to(x.dtype) for part in waves(positions, x.shape[-1]))
    return rotate(x, (cosine, sine))


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes that all attention of a model shares."""

    width: int
    num_heads: int
    mlp_size: int
    window: int
    """The elements of the keys' scale that a query sees, the newest included."""
    position: str
    """One of `POSITIONS`."""


class CarriedAttention(nn.Module):
    """An attention block with positions, which keeps keys and values of earlier elements in the state."""

    def __init__(self, name: str, sizes: AttentionSizes, kept: int, spacing: int = 1) -> None:
        """Prepare the block.

        name: of its part of the state; kept: the number of elements in it; spacing: the number of
        elements of the queries' scale for one of the keys' scale.
        """
        super().__init__()
        self.block = AttentionBlock(sizes.width, sizes.num_heads, sizes.mlp_size, "the Hourglass")
        longest = sizes.window * spacing
        self.position = POSITIONS[sizes.position](sizes.width, sizes.num_heads, longest)
        self.kept = Recent(name, kept, 2 * sizes.width)

    def forward(
        self, x: Tensor, context: Tensor, elements: Elements, sight: Sight, carried: Carried
    ) -> Tensor:
        """Let x attend to the context and to the elements before it.

        x: (B, S, r, D); context: (B, E, r, D) of `elements`. Returns (B, S, r, D).
        """
        new = torch.cat(self.block.keys_values(context), dim=-1)
        keys, values = self.kept(new, elements, carried).flatten(1, 2).chunk(2, dim=-1)
        rows = x.flatten(1, 2)
        query, keys, mask = self.position(self.block.queries(rows), self.block.heads(keys), sight)
        mixed = F.scaled_dot_product_attention(
            query, keys, self.block.heads(values), attn_mask=mask
        )
        return self.block.finish(rows, mixed).view_as(x)
