"""Load weights of the TTM authors' JAX code (Scenic, projects/token_turing) into our unit.

The results of the loaded unit equal theirs up to rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ttm.policy.cores.ttm.scenic_layout import Array, Kinds, Source, kinds_of, sources_of
from ttm.policy.cores.ttm.unit import TokenTuringUnit, build_unit
from ttm.policy.cores.ttm.unit_config import UnitConfig
from ttm.policy.errors import UserError
from ttm.policy.layers.summarizers import NUM_HEADS as MHA_HEADS

Sizes = dict[str, int]
"""Name -> size that the shapes of the arrays agree on: D width, r process size, m memory size, ..."""


def load_scenic(params: Mapping[str, Any], *, num_heads: int) -> TokenTuringUnit:
    """Return the unit of which `params` are the weights, in evaluation mode.

    Parameters
    ----------
    params
        Flax path without the leading `params/` -> array, float32 or float64, for example
        "TokenLearnerModuleV11_0/LayerNorm_0/scale". These are the arrays of exactly one
        `TokenTuringMachineUnit`, of any kind; names and shapes determine the configuration.
    num_heads
        The heads of the Transformer. The other processors have none and ignore it.

    Call the result as `memory, outputs = unit(memory, tokens)`, with memory (B, m, D) and tokens
    (B, N, D). It has the precision of the arrays. The authors' memory starts at zero, except for
    weights of erase-and-add.

    Raises `UserError`, which names all arrays that are missing, unknown, or of a wrong shape or type.
    """
    arrays = {key: np.asarray(value) for key, value in params.items()}
    kinds = kinds_of(arrays)
    sources = sources_of(kinds)
    _require_keys(arrays, sources, kinds)
    _require_floats(arrays)
    sizes = _sizes(arrays, sources)
    _require_heads(sizes, num_heads)
    _require_shapes(arrays, sources, sizes)
    with torch.device("meta"):  # saves memory and random numbers: all parameters are replaced
        unit = _empty_unit(kinds, sizes)
    doubles = any(array.dtype == np.float64 for array in arrays.values())
    dtype = torch.float64 if doubles else torch.float32
    values = {source.target: source.read(arrays).to(dtype) for source in sources if source.target}
    unit.load_state_dict(values, assign=True)
    return unit.eval()


def _require_keys(arrays: Mapping[str, Array], sources: Iterable[Source], kinds: Kinds) -> None:
    expected = {key for source in sources for key in source.keys}
    faults = {
        "missing": sorted(expected - arrays.keys()),
        "unknown": sorted(arrays.keys() - expected),
    }
    found = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in faults.items() if keys)
    if found:
        raise UserError(
            f"these are not the weights of one Scenic TTM unit (read as {kinds.summarizer} summariser, "
            f"{kinds.processor} processor, write {kinds.write}): {found}; give all of the unit's arrays "
            f"and no others, by their paths within the unit (without 'params/' and the names of "
            f"modules around it)"
        )


def _require_floats(arrays: Mapping[str, Array]) -> None:
    wrong = [
        f"{key} is {a.dtype}"
        for key, a in arrays.items()
        if a.dtype not in (np.float32, np.float64)
    ]
    if wrong:
        raise UserError(
            f"Scenic weights must be float32 or float64: {', '.join(wrong)}; convert them"
        )


def _sizes(arrays: Mapping[str, Array], sources: Iterable[Source]) -> Sizes:
    """Return each size as the majority of the shapes have it.

    A single wrong array is thus outvoted, and can be reported. Sizes with a tie are left out.
    """
    votes: dict[str, Counter[int]] = {}
    for source in sources:
        for key in source.keys:
            if len(arrays[key].shape) == len(source.shape):
                for name, size in zip(source.shape, arrays[key].shape, strict=True):
                    votes.setdefault(str(name), Counter())[size] += 1
    ranked = {name: counter.most_common(2) for name, counter in votes.items()}
    return {
        name: best[0]
        for name, (best, *other) in ranked.items()
        if not other or best[1] > other[0][1]
    }


def _require_heads(sizes: Sizes, num_heads: int) -> None:
    """Check `num_heads` against the Transformer's kernels, if there are any."""
    if sizes.get("H", num_heads) != num_heads:
        raise UserError(
            f"num_heads is {num_heads}, but the kernels "
            f"Encoder_0/encoderblock_*/MultiHeadDotProductAttention_0/{{query,key,value,out}} "
            f"have {sizes['H']} heads; give num_heads={sizes['H']}"
        )


def _require_shapes(arrays: Mapping[str, Array], sources: Iterable[Source], sizes: Sizes) -> None:
    known = _consistent(sizes)
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
            f"these shapes do not fit the rest of a Scenic TTM unit (width D, n inputs, r read and m memory "
            f"tokens, H heads): {'; '.join(wrong)}; give one unit's arrays as they were saved"
        )


def _consistent(sizes: Sizes) -> Sizes:
    """Add the sizes of heads, and remove numbers of tokens that contradict each other."""
    known = dict(sizes)
    for heads, count in ((str(MHA_HEADS), MHA_HEADS), ("H", sizes.get("H", 1))):
        known[f"D/{heads}"] = sizes.get("D", 0) // count
    joined, memory = sizes.get("m+n", 0), sizes.get("m", 0)
    if joined <= memory or joined + sizes.get("r", 0) != sizes.get("m+n+r"):
        for name in ("m+n", "m+n+r"):
            known.pop(name, None)
    return known


def _empty_unit(kinds: Kinds, sizes: Sizes) -> TokenTuringUnit:
    """Build the unit without values. Sizes that its kind does not have are arbitrary."""
    memory_size = sizes.get("m", 1)  # erase-and-add has no parameter of this size, and fits any
    config = UnitConfig(
        memory_size=memory_size,
        process_size=sizes["r"],
        num_layers=kinds.num_layers,
        num_heads=sizes.get("H", 1),
        mlp_size=sizes.get("mlp size", 1),
        bottleneck=sizes.get("bottleneck", 1),
        positional_embedding=kinds.positional_embedding,
        summarizer=kinds.summarizer,
        processor=kinds.processor,
        write=kinds.write,
        token_mixing_size=sizes.get("token mixing size", 1),
    )
    return build_unit(sizes["D"], sizes.get("m+n", memory_size) - memory_size, config)
