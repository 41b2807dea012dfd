"""The sizes and kinds of one Token Turing Machine unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from ttm.policy.checks import require_valid_fields


@dataclass(frozen=True)
class UnitConfig:
    """The values that `build_unit` takes. Construction raises `UserError` for values out of range.

    The paper's robot setting is memory_size 96, process_size 16, num_layers 8.
    """

    smallest: ClassVar[Mapping[str, int]] = MappingProxyType({"num_layers": 0})
    """Field -> its smallest value, where that is not 1."""

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
    """Whether P_read and P_write are added, which tell the summarisers the tokens apart.

    P_write exists where the write is a summary. The Transformer has an embedding of its own in any
    case, the other processors have none.
    """
    summarizer: Literal["mlp", "mha", "query", "pooling"] = "mlp"
    """S_r, and S_m where the write is a summary.

    mlp: weights by an MLP of each token (the authors' TL). mha: learned queries in 8 heads, with
    projections (TL-MHA). query: learned queries in one head, without projections (eq. 2). pooling:
    means of neighbouring tokens.
    """
    processor: Literal["transformer", "mixer", "mlp"] = "transformer"
    """Process: a Transformer encoder, an MLP-Mixer, or an MLP of each token."""
    write: Literal["summarize", "erase_add", "concatenate"] = "summarize"
    """summarize: by S_m. erase_add: erase and add, as the Neural Turing Machine (TL-AddErase).
    concatenate: keep the newest m tokens of [M ‖ O]."""
    token_mixing_size: int = 128
    """Hidden width of the Mixer's MLPs over tokens."""

    def __post_init__(self) -> None:
        require_valid_fields(self, self.smallest)
