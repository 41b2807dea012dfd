"""The sizes and kinds of one Token Turing Machine unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from ttm.policy.checks import require_valid_fields
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class UnitConfig:
    """The values that `build_unit` takes. Construction raises `UserError` for values out of range.

    The paper's robot setting is memory_size 96, process_size 16, num_layers 8.
    """

    smallest: ClassVar[Mapping[str, int]] = MappingProxyType({"num_layers": 0, "gate_max_ticks": 2})
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
    write: Literal["summarize", "erase_add", "concatenate", "gated", "keep", "ring"] = "summarize"
    """summarize: by S_m. erase_add: erase and add, as the Neural Turing Machine (TL-AddErase).
    concatenate: keep the newest m tokens of [M ‖ O]. Not of the paper are gated, which mixes each
    slot with S_m by a learned gate, keep, an S_m whose slots start by keeping themselves, and ring,
    which visits one slot a tick, in turn, and keeps or replaces it by a learned gate."""
    token_mixing_size: int = 128
    """Hidden width of the Mixer's MLPs over tokens."""
    read: Literal["summarize", "attend"] = "summarize"
    """summarize: by S_r of [M ‖ I]. attend (not of the paper): queries made from the memory attend to
    [M ‖ I], so that what is remembered chooses what is looked at."""
    process_memory: bool = False
    """Whether Process sees the m memory tokens beside the r tokens that were read (not of the paper).

    It then processes r + m tokens, and the first r are the outputs.
    """
    write_outputs: bool = True
    """Whether the write sees the outputs O. False (not of the paper): it sees [M ‖ I] alone.

    In training, the write alone then runs tick by tick, and read and Process run on all ticks at
    once.
    """
    gate_max_ticks: int = 100
    """The longest time scale, in ticks, over which the slots of write=gated, or the channels of
    write=ring, are spread at the start."""
    keep_portion: float = 0.9
    """The portion of itself that a slot of write=keep keeps a tick at the start."""

    def __post_init__(self) -> None:
        require_valid_fields(self, self.smallest)
        if not 0 < self.keep_portion < 1:
            raise UserError(
                f"keep_portion is {self.keep_portion:g}; give a number above 0 and below 1"
            )
        if self.write == "keep" and self.summarizer not in ("mlp", "query"):
            raise UserError(
                f"write=keep does not go with summarizer={self.summarizer}, which has no logits of "
                "one head that a bias could be added to; give summarizer=mlp or query"
            )
        if not self.write_outputs and self.write in ("erase_add", "concatenate"):
            raise UserError(
                f"write={self.write} writes the outputs alone and does not go with "
                "write_outputs=false; give write=summarize, gated, keep or ring"
            )
