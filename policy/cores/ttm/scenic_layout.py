"""Where each parameter of a unit comes from in the weights of the TTM authors' JAX code.

Flax stores the kernel of a dense layer as (in, out), and those of attention as (D, heads, D / heads)
and (heads, D / heads, D). PyTorch stores (out, in).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.cores.ttm.memory_write import WRITE_HIDDEN, WRITE_TOKENS
from ttm.policy.layers.summarizers import NUM_HEADS as MHA_HEADS

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Source:
    """Where one of our parameters comes from."""

    target: str
    """Its name within `TokenTuringUnit`, or "" if we have no such parameter."""
    keys: tuple[str, ...]
    """Flax paths of the arrays that form it, to be joined along the output channels."""
    shape: tuple[int | str, ...]
    """The shape of each array: numbers, and names of sizes such as "D"."""
    input_axes: int = 0
    """The number of leading axes over which a kernel sums; 0 for arrays that are no kernels."""

    def read(self, arrays: Mapping[str, Array]) -> Tensor:
        """Return the parameter in the layout of PyTorch. Embeddings keep their shape."""
        parts = [arrays[key] for key in self.keys]
        if self.input_axes:
            inputs = int(np.prod(parts[0].shape[: self.input_axes]))
            parts = [part.reshape(inputs, -1).T for part in parts]
        elif self.target.endswith(".bias"):
            parts = [part.reshape(-1) for part in parts]
        return torch.tensor(np.concatenate(parts)).contiguous()


@dataclass(frozen=True)
class Kinds:
    """What the names of the arrays say about the unit."""

    summarizer: Literal["mlp", "mha"]
    processor: Literal["transformer", "mixer", "mlp"]
    write: Literal["summarize", "erase_add"]
    positional_embedding: bool
    num_layers: int


def kinds_of(keys: Collection[str]) -> Kinds:
    """Derive the kinds from the names of the modules.

    A single missing array does not change the result, so that it can be reported by its name.
    """
    modules = {key.split("/")[0] for key in keys}
    blocks = {key.split("/")[1] for key in keys if key.startswith("Encoder_0/")}
    mha = bool(modules & {"TokenLearnerMHA_0", "TokenLearnerMHA_1"})
    layers = {
        "mixer": _count("MixerBlock_", modules),
        "transformer": _count("encoderblock_", blocks),
        "mlp": max(_count("MlpBlock_", modules), _count("LayerNorm_", modules) - 1),
    }
    processor: Literal["transformer", "mixer", "mlp"] = "transformer"
    if layers["mixer"]:
        processor = "mixer"
    elif "Encoder_0" not in modules and modules & {"MlpBlock_0", "LayerNorm_0"}:
        processor = "mlp"
    return Kinds(
        summarizer="mha" if mha else "mlp",
        processor=processor,
        write="erase_add" if "TokenAddEraseWrite_0" in modules else "summarize",
        positional_embedding=bool(modules & {"read_pos_embed", "write_pos_embed"}),
        num_layers=layers[processor],
    )


def _count(prefix: str, names: Iterable[str]) -> int:
    """Return one more than the greatest number that follows `prefix` in `names`, or 0."""
    matches = (re.fullmatch(prefix + r"(\d{1,3})", name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def sources_of(kinds: Kinds) -> list[Source]:
    """Return the sources of all parameters of such a unit.

    Arrays that the authors' unit has but never uses have no target.
    """
    summarizer = {"mlp": _mlp_summarizer, "mha": _mha_summarizer}[kinds.summarizer]
    process = {"transformer": _transformer, "mixer": _mixer, "mlp": _mlps}[kinds.processor]
    sources = summarizer("read.summarizer", 0, "r") + process(kinds.num_layers)
    written = kinds.write == "summarize"
    sources += summarizer("write.summarizer", 1, "m") if written else _erase_add()
    if kinds.positional_embedding:
        sources += [
            Source("read.position", ("read_pos_embed/pos_embedding",), (1, "m+n", "D")),
            Source(
                "write.position" if written else "",
                ("write_pos_embed/pos_embedding",),
                (1, "m+n+r", "D"),
            ),
        ]
    return sources


def _dense(target: str, key: str, inputs: int | str, outputs: int | str) -> list[Source]:
    return [
        Source(f"{target}.weight", (f"{key}/kernel",), (inputs, outputs), input_axes=1),
        Source(f"{target}.bias", (f"{key}/bias",), (outputs,)),
    ]


def _mlp(
    target: str, key: str, inputs: int | str, hidden: int | str, outputs: int | str
) -> list[Source]:
    first = _dense(f"{target}.hidden", f"{key}/Dense_0", inputs, hidden)
    return first + _dense(f"{target}.out", f"{key}/Dense_1", hidden, outputs)


def _norm(target: str, key: str) -> list[Source]:
    return [
        Source(f"{target}.weight", (f"{key}/scale",), ("D",)),
        Source(f"{target}.bias", (f"{key}/bias",), ("D",)),
    ]


def _projection(target: str, key: str, names: Iterable[str], heads: int | str) -> list[Source]:
    """Return the sources of query, key or value, or of several of them that share one matrix."""
    kernels, biases = (
        tuple(f"{key}/{name}/{part}" for name in names) for part in ("kernel", "bias")
    )
    return [
        Source(f"{target}.weight", kernels, ("D", heads, f"D/{heads}"), input_axes=1),
        Source(f"{target}.bias", biases, (heads, f"D/{heads}")),
    ]


def _projection_back(target: str, key: str, heads: int | str) -> list[Source]:
    return [
        Source(f"{target}.weight", (f"{key}/kernel",), (heads, f"D/{heads}", "D"), input_axes=2),
        Source(f"{target}.bias", (f"{key}/bias",), ("D",)),
    ]


def _mlp_summarizer(target: str, number: int, num_tokens: str) -> list[Source]:
    key = f"TokenLearnerModuleV11_{number}"
    return _norm(f"{target}.norm", f"{key}/LayerNorm_0") + _mlp(
        f"{target}.mlp", f"{key}/token_masking", "D", "bottleneck", num_tokens
    )


def _mha_summarizer(target: str, number: int, num_tokens: str) -> list[Source]:
    key = f"TokenLearnerMHA_{number}"
    return [
        Source(f"{target}.queries", (f"{key}/tokens",), (1, num_tokens, "D")),
        *_projection(f"{target}.query", f"{key}/attn", ["query"], MHA_HEADS),
        *_projection(f"{target}.key_value", f"{key}/attn", ["key", "value"], MHA_HEADS),
        *_projection_back(f"{target}.out", f"{key}/attn/out", MHA_HEADS),
    ]


def _transformer(num_layers: int) -> list[Source]:
    position = Source(
        "process.position", ("Encoder_0/posembed_input/pos_embedding",), (1, "r", "D")
    )
    sources = [position, *_norm("process.norm", "Encoder_0/encoder_norm")]
    for i in range(num_layers):
        block, key = f"process.blocks.{i}", f"Encoder_0/encoderblock_{i}"
        attention = f"{key}/MultiHeadDotProductAttention_0"
        sources += _norm(f"{block}.attention_norm", f"{key}/LayerNorm_0")
        sources += _projection(f"{block}.attention.qkv", attention, ["query", "key", "value"], "H")
        sources += _projection_back(f"{block}.attention.out", f"{attention}/out", "H")
        sources += _norm(f"{block}.mlp_norm", f"{key}/LayerNorm_1")
        sources += _mlp(f"{block}.mlp", f"{key}/MlpBlock_0", "D", "mlp size", "D")
    return sources


def _mixer(num_layers: int) -> list[Source]:
    sources = _norm("process.norm", "LayerNorm_0")
    for i in range(num_layers):
        block, key = f"process.blocks.{i}", f"MixerBlock_{i}"
        sources += _norm(f"{block}.token_norm", f"{key}/LayerNorm_0")
        sources += _mlp(
            f"{block}.token_mixing", f"{key}/token_mixing", "r", "token mixing size", "r"
        )
        sources += _norm(f"{block}.channel_norm", f"{key}/LayerNorm_1")
        sources += _mlp(f"{block}.channel_mixing", f"{key}/channel_mixing", "D", "mlp size", "D")
    return sources


def _mlps(num_layers: int) -> list[Source]:
    sources = _norm("process.norm", f"LayerNorm_{num_layers}")
    for i in range(num_layers):
        sources += _norm(f"process.layers.{i}.0", f"LayerNorm_{i}")
        sources += _mlp(f"process.layers.{i}.1", f"MlpBlock_{i}", "D", "mlp size", "D")
    return sources


def _erase_add() -> list[Source]:
    key = "TokenAddEraseWrite_0"
    sources = _norm("write.norm", f"{key}/LayerNorm_0")
    sources += _mlp("write.select", f"{key}/MlpBlock_0", "D", WRITE_HIDDEN, WRITE_TOKENS)
    for target, norm, first in (("write.erase", 1, 1), ("write.add", 2, 3)):
        sources += _norm(f"{target}.norm", f"{key}/LayerNorm_{norm}")
        sources += _mlp(
            f"{target}.token_mlp", f"{key}/MlpBlock_{first}", "r", WRITE_HIDDEN, WRITE_TOKENS
        )
        sources += _mlp(
            f"{target}.channel_mlp", f"{key}/MlpBlock_{first + 1}", "D", WRITE_HIDDEN, "D"
        )
    return sources
