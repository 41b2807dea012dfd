"""Load weights of the TTM authors' JAX code (Scenic, projects/token_turing) into our unit.

The results of the loaded unit equal theirs up to rounding. Flax stores the kernel of a dense layer as
(in, out), and those of attention as (D, heads, D / heads) and (heads, D / heads, D). PyTorch stores
(out, in).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachineUnit
from ttm.policy.cores.ttm_variants import MHA_HEADS, WRITE_HIDDEN, WRITE_TOKENS
from ttm.policy.errors import UserError

Array = npt.NDArray[Any]
Sizes = dict[str, int]
"""Name -> size that the shapes of the arrays agree on: D width, r process size, m memory size, ..."""


@dataclass(frozen=True)
class Source:
    """Where one of our parameters comes from."""

    target: str  # its name within `TokenTuringMachineUnit`, or "" if we have no such parameter
    keys: tuple[str, ...]  # Flax paths of its arrays, to be joined along the output channels
    shape: tuple[int | str, ...]  # of each array: numbers, and names of sizes such as "D"
    input_axes: int = 0  # leading axes over which a kernel sums; 0 for arrays that are no kernels

    def read(self, arrays: Mapping[str, Array]) -> Tensor:
        """Return the parameter in the layout of PyTorch. Embeddings keep their shape."""
        parts = [arrays[key] for key in self.keys]
        if self.input_axes:
            inputs = int(np.prod(parts[0].shape[: self.input_axes]))
            parts = [part.reshape(inputs, -1).T for part in parts]
        elif self.target.endswith(".bias"):
            parts = [part.reshape(-1) for part in parts]
        return torch.tensor(np.concatenate(parts)).contiguous()


def load_scenic(params: Mapping[str, Any], *, num_heads: int) -> TokenTuringMachineUnit:
    """Return the unit of which `params` are the weights, in evaluation mode and in their precision.

    params: Flax path without the leading `params/` -> array, float32 or float64, for example
    "TokenLearnerModuleV11_0/LayerNorm_0/scale": all arrays of one `TokenTuringMachineUnit`, of any kind;
    names and shapes determine the configuration. num_heads: of the Transformer; other processors ignore
    it.

    Call the result as `memory, outputs = unit(memory, tokens)`, with memory (B, m, D) and tokens
    (B, N, D). The authors' memory starts at zero, except for weights of erase-and-add. Raises `UserError`,
    which names all arrays that are missing, unknown, or of a wrong shape or type.
    """
    arrays = {key: np.asarray(value) for key, value in params.items()}
    kinds = _kinds_of(arrays)
    sources = _sources_of(kinds)
    _require_arrays(arrays, sources, kinds)
    sizes = _sizes(arrays, sources)
    _require_shapes(arrays, sources, sizes, num_heads)
    names = {
        "memory_size": "m", "process_size": "r", "num_heads": "H", "mlp_size": "mlp size",
        "bottleneck": "bottleneck", "token_mixing_size": "token mixing size",
    }  # fmt: skip
    # Sizes that a kind does not have are arbitrary; erase-and-add fits any memory size.
    found: dict[str, Any] = {field: sizes.get(name, 1) for field, name in names.items()}
    config = replace(kinds, **found)
    num_inputs = sizes.get("m+n", config.memory_size) - config.memory_size
    with torch.device("meta"):  # saves memory and random numbers: all parameters are replaced
        unit = TokenTuringMachineUnit(sizes["D"], num_inputs, config)
    doubles = any(array.dtype == np.float64 for array in arrays.values())
    dtype = torch.float64 if doubles else torch.float32
    values = {source.target: source.read(arrays).to(dtype) for source in sources if source.target}
    unit.load_state_dict(values, assign=True)
    return unit.eval()


def _kinds_of(keys: Collection[str]) -> TokenTuringConfig:
    """Derive kinds and number of layers from the names of the modules, even if an array is missing."""
    modules = {key.split("/")[0] for key in keys}
    blocks = {key.split("/")[1] for key in keys if key.startswith("Encoder_0/")}
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
    mha = modules & {"TokenLearnerMHA_0", "TokenLearnerMHA_1"}
    erases = "TokenAddEraseWrite_0" in modules
    return TokenTuringConfig(
        summarizer="mha" if mha else "mlp",
        processor=processor,
        write="erase_add" if erases else "summarize",
        initial_memory="learned" if erases else "zeros",
        positional_embedding=bool(modules & {"read_pos_embed", "write_pos_embed"}),
        num_layers=layers[processor],
    )


def _count(prefix: str, names: Iterable[str]) -> int:
    """Return one more than the greatest number that follows `prefix` in `names`, or 0."""
    matches = (re.fullmatch(prefix + r"(\d{1,3})", name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def _sources_of(kinds: TokenTuringConfig) -> list[Source]:
    summarizer = {"mlp": _mlp_summarizer, "mha": _mha_summarizer}[kinds.summarizer]
    process = {"transformer": _transformer, "mixer": _mixer, "mlp": _mlps}[kinds.processor]
    sources = summarizer("read.summarizer", 0, "r") + process(kinds.num_layers)
    written = kinds.write == "summarize"
    sources += summarizer("write.summarizer", 1, "m") if written else _erase_add()
    if kinds.positional_embedding:
        write = "write.position" if written else ""
        sources += [
            Source("read.position", ("read_pos_embed/pos_embedding",), (1, "m+n", "D")),
            Source(write, ("write_pos_embed/pos_embedding",), (1, "m+n+r", "D")),
        ]
    return sources


def _dense(
    target: str, *keys: str, shape: tuple[int | str, ...], input_axes: int = 1
) -> list[Source]:
    """Return the sources of a dense layer, or of several that share one matrix of ours."""
    kernels, biases = (tuple(f"{key}/{part}" for key in keys) for part in ("kernel", "bias"))
    return [
        Source(f"{target}.weight", kernels, shape, input_axes),
        Source(f"{target}.bias", biases, shape[input_axes:]),
    ]


def _attention(target: str, key: str, heads: int | str, *groups: str) -> list[Source]:
    """Return the sources of multi-head attention; groups: projections of ours, such as "key_value"."""
    sources = _dense(f"{target}.out", f"{key}/out", shape=(heads, f"D/{heads}", "D"), input_axes=2)
    names = {"qkv": ("query", "key", "value"), "key_value": ("key", "value"), "query": ("query",)}
    for group in groups:
        keys = [f"{key}/{name}" for name in names[group]]
        sources += _dense(f"{target}.{group}", *keys, shape=("D", heads, f"D/{heads}"))
    return sources


def _mlp(target: str, key: str, *sizes: int | str) -> list[Source]:
    first = _dense(f"{target}.hidden", f"{key}/Dense_0", shape=sizes[:2])
    return first + _dense(f"{target}.out", f"{key}/Dense_1", shape=sizes[1:])


def _norm(target: str, key: str) -> list[Source]:
    return [
        Source(f"{target}.weight", (f"{key}/scale",), ("D",)),
        Source(f"{target}.bias", (f"{key}/bias",), ("D",)),
    ]


def _mlp_summarizer(target: str, number: int, num_tokens: str) -> list[Source]:
    key = f"TokenLearnerModuleV11_{number}"
    norm = _norm(f"{target}.norm", f"{key}/LayerNorm_0")
    return norm + _mlp(f"{target}.mlp", f"{key}/token_masking", "D", "bottleneck", num_tokens)


def _mha_summarizer(target: str, number: int, num_tokens: str) -> list[Source]:
    key = f"TokenLearnerMHA_{number}"
    queries = Source(f"{target}.queries", (f"{key}/tokens",), (1, num_tokens, "D"))
    return [queries, *_attention(target, f"{key}/attn", MHA_HEADS, "query", "key_value")]


def _transformer(num_layers: int) -> list[Source]:
    position = "Encoder_0/posembed_input/pos_embedding"
    sources = [Source("process.position", (position,), (1, "r", "D"))]
    sources += _norm("process.norm", "Encoder_0/encoder_norm")
    for i in range(num_layers):
        block, key = f"process.blocks.{i}", f"Encoder_0/encoderblock_{i}"
        attention = f"{key}/MultiHeadDotProductAttention_0"
        sources += _norm(f"{block}.attention_norm", f"{key}/LayerNorm_0")
        sources += _attention(f"{block}.attention", attention, "H", "qkv")
        sources += _norm(f"{block}.mlp_norm", f"{key}/LayerNorm_1")
        sources += _mlp(f"{block}.mlp", f"{key}/MlpBlock_0", "D", "mlp size", "D")
    return sources


def _mixer(num_layers: int) -> list[Source]:
    sources = _norm("process.norm", "LayerNorm_0")
    for i in range(num_layers):
        block, key = f"process.blocks.{i}", f"MixerBlock_{i}"
        tokens, channels = ("r", "token mixing size", "r"), ("D", "mlp size", "D")
        sources += _norm(f"{block}.token_norm", f"{key}/LayerNorm_0")
        sources += _mlp(f"{block}.token_mixing", f"{key}/token_mixing", *tokens)
        sources += _norm(f"{block}.channel_norm", f"{key}/LayerNorm_1")
        sources += _mlp(f"{block}.channel_mixing", f"{key}/channel_mixing", *channels)
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
    for target, norm, mlp in (("write.erase", 1, 1), ("write.add", 2, 3)):
        tokens, channels = ("r", WRITE_HIDDEN, WRITE_TOKENS), ("D", WRITE_HIDDEN, "D")
        sources += _norm(f"{target}.norm", f"{key}/LayerNorm_{norm}")
        sources += _mlp(f"{target}.token_mlp", f"{key}/MlpBlock_{mlp}", *tokens)
        sources += _mlp(f"{target}.channel_mlp", f"{key}/MlpBlock_{mlp + 1}", *channels)
    return sources


def _require_arrays(
    arrays: Mapping[str, Array], sources: Iterable[Source], kinds: TokenTuringConfig
) -> None:
    """Raise `UserError` for arrays that are missing, unknown, or no floating-point numbers."""
    expected = {key for source in sources for key in source.keys}
    faults = {"missing": expected - arrays.keys(), "unknown": arrays.keys() - expected}
    found = "; ".join(f"{name}: {', '.join(sorted(keys))}" for name, keys in faults.items() if keys)
    if found:
        raise UserError(
            f"these are not the weights of one Scenic TTM unit (read as {kinds.summarizer} summariser, "
            f"{kinds.processor} processor, write {kinds.write}): {found}; give all of the unit's arrays "
            "and no others, by their paths within the unit, without 'params/'"
        )
    floats = (np.float32, np.float64)
    wrong = [f"{key} is {a.dtype}" for key, a in arrays.items() if a.dtype not in floats]
    if wrong:
        raise UserError(f"Scenic weights must be float32 or float64: {', '.join(wrong)}")


def _sizes(arrays: Mapping[str, Array], sources: Iterable[Source]) -> Sizes:
    """Return each size as the majority of the shapes have it, so that a wrong array is outvoted.

    Sizes with a tie are left out.
    """
    votes: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for source in sources:
        for shape in (arrays[key].shape for key in source.keys):
            if len(shape) == len(source.shape):
                for name, size in zip(source.shape, shape, strict=True):
                    votes[str(name)][size] += 1
    ranked = {name: [*counter.most_common(2), (0, 0)] for name, counter in votes.items()}
    return {name: first[0] for name, (first, second, *_) in ranked.items() if first[1] > second[1]}


def _require_shapes(
    arrays: Mapping[str, Array], sources: Iterable[Source], sizes: Sizes, num_heads: int
) -> None:
    if sizes.get("H", num_heads) != num_heads:
        given = f"num_heads is {num_heads}, but the kernels have {sizes['H']} heads"
        raise UserError(f"{given}; give num_heads={sizes['H']}")
    width, joined, memory = (sizes.get(name, 0) for name in ("D", "m+n", "m"))
    known = {**sizes, f"D/{MHA_HEADS}": width // MHA_HEADS, "D/H": width // sizes.get("H", 1)}
    if joined <= memory or joined + sizes.get("r", 0) != sizes.get("m+n+r"):
        for name in ("m+n", "m+n+r"):  # they contradict each other
            known.pop(name, None)
    wrong = []
    for source in sources:
        expected = tuple(
            size if isinstance(size, int) else known.get(size, size) for size in source.shape
        )
        wrong += [
            f"{key} is ({', '.join(map(str, arrays[key].shape))}), not ({', '.join(map(str, expected))})"
            for key in source.keys
            if arrays[key].shape != expected
        ]
    if wrong:
        raise UserError(
            "these shapes do not fit the rest of a Scenic TTM unit (width D, n inputs, r read and m memory "
            f"tokens, H heads): {'; '.join(wrong)}"
        )
