"""`load_scenic` against the authors' arithmetic, restated in NumPy, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from rounding import assert_same_but_rounding

from ttm.policy import UserError, load_scenic
from ttm.policy.cores.ttm import TokenTuringMachineUnit

Arrays = dict[str, np.ndarray]
D, HEADS, LAYERS, HIDDEN, BOTTLENECK, MIXING = 24, 3, 2, 20, 10, 18
m, n, r, T, INNER, STEPS = 6, 5, 4, 8, 64, 3
KINDS = [
    (summary, process, write, positions)
    for (summary, write), process, positions in product(
        [("TL", "TL"), ("MHA", "MHA"), ("TL", "AddErase")],
        ["transformer", "mixer", "mlp"],
        [False, True],
    )
]


# Random parameters with the names and shapes of Flax.


def shapes(
    summary: str, process: str, write: str, positions: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from summarizer_shapes(summary, 0, r)
    yield from {"transformer": encoder_shapes, "mixer": mixer_shapes, "mlp": mlp_shapes}[process]()
    if write == "AddErase":
        name = "TokenAddEraseWrite_0"
        for k in range(3):
            yield from norm_shapes(f"{name}/LayerNorm_{k}")
        yield from block_shapes(f"{name}/MlpBlock_0", D, INNER, T)
        for k in (1, 3):
            yield from block_shapes(f"{name}/MlpBlock_{k}", r, INNER, T)
            yield from block_shapes(f"{name}/MlpBlock_{k + 1}", D, INNER, D)
    else:
        yield from summarizer_shapes(write, 1, m)
    if positions:
        yield "read_pos_embed/pos_embedding", (1, m + n, D)
        yield "write_pos_embed/pos_embedding", (1, m + n + r, D)


def norm_shapes(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}/{part}", (D,)) for part in ("scale", "bias"))


def block_shapes(
    name: str, size: int, hidden: int, out: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}/Dense_0/kernel", (size, hidden)), (f"{name}/Dense_0/bias", (hidden,)))
    yield from ((f"{name}/Dense_1/kernel", (hidden, out)), (f"{name}/Dense_1/bias", (out,)))


def attention_shapes(name: str, heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("query", "key", "value"):
        yield f"{name}/{part}/kernel", (D, heads, D // heads)
        yield f"{name}/{part}/bias", (heads, D // heads)
    yield from ((f"{name}/out/kernel", (heads, D // heads, D)), (f"{name}/out/bias", (D,)))


def summarizer_shapes(kind: str, number: int, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if kind == "MHA":
        yield f"TokenLearnerMHA_{number}/tokens", (1, count, D)
        yield from attention_shapes(f"TokenLearnerMHA_{number}/attn", 8)
    else:
        yield from norm_shapes(f"TokenLearnerModuleV11_{number}/LayerNorm_0")
        yield from block_shapes(
            f"TokenLearnerModuleV11_{number}/token_masking", D, BOTTLENECK, count
        )


def encoder_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "Encoder_0/posembed_input/pos_embedding", (1, r, D)
    yield from norm_shapes("Encoder_0/encoder_norm")
    for name in (f"Encoder_0/encoderblock_{i}" for i in range(LAYERS)):
        yield from norm_shapes(f"{name}/LayerNorm_0")
        yield from norm_shapes(f"{name}/LayerNorm_1")
        yield from attention_shapes(f"{name}/MultiHeadDotProductAttention_0", HEADS)
        yield from block_shapes(f"{name}/MlpBlock_0", D, HIDDEN, D)


def mixer_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from norm_shapes("LayerNorm_0")
    for name in (f"MixerBlock_{i}" for i in range(LAYERS)):
        yield from norm_shapes(f"{name}/LayerNorm_0")
        yield from norm_shapes(f"{name}/LayerNorm_1")
        yield from block_shapes(f"{name}/token_mixing", r, MIXING, r)
        yield from block_shapes(f"{name}/channel_mixing", D, HIDDEN, D)


def mlp_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for i in range(LAYERS):
        yield from norm_shapes(f"LayerNorm_{i}")
        yield from block_shapes(f"MlpBlock_{i}", D, HIDDEN, D)
    yield from norm_shapes(f"LayerNorm_{LAYERS}")


def random_params(kinds: tuple[str, str, str, bool], seed: int = 0) -> Arrays:
    """Return random values for all arrays, so that no bias is 0 and no scale is 1."""
    rng = np.random.default_rng(seed)
    params = {}
    for key, shape in shapes(*kinds):
        inputs = D if key.endswith("out/kernel") else shape[0]
        spread = inputs**-0.5 if key.endswith("kernel") else 0.3
        params[key] = rng.normal(size=shape) * spread + key.endswith("scale")
    return params


# One step in NumPy.


def layer_norm(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-6) * p[f"{name}/scale"] + p[f"{name}/bias"]


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    grown = np.exp(x - x.max(axis=axis, keepdims=True))
    return grown / grown.sum(axis=axis, keepdims=True)


def mlp(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    x = x @ p[f"{name}/Dense_0/kernel"] + p[f"{name}/Dense_0/bias"]
    x = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x @ p[f"{name}/Dense_1/kernel"] + p[f"{name}/Dense_1/bias"]


def mlp_over_tokens(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return mlp(x.swapaxes(1, 2), p, name).swapaxes(1, 2)


def attention(of: np.ndarray, over: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    kernels, biases = (
        {k: p[f"{name}/{k}/{part}"] for k in ("query", "key", "value", "out")}
        for part in ("kernel", "bias")
    )
    result = np.broadcast_to(biases["out"], of.shape).copy()
    for h in range(kernels["query"].shape[1]):
        q, k, v = (
            x @ kernels[part][:, h] + biases[part][h]
            for x, part in ((of, "query"), (over, "key"), (over, "value"))
        )
        weights = softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), axis=-1)
        result += weights @ v @ kernels["out"][h]
    return result


def summarise(x: np.ndarray, p: Arrays, kind: str, number: int) -> np.ndarray:
    if kind == "MHA":
        name = f"TokenLearnerMHA_{number}"
        return attention(np.repeat(p[f"{name}/tokens"], len(x), axis=0), x, p, f"{name}/attn")
    name = f"TokenLearnerModuleV11_{number}"
    weights = softmax(
        mlp(layer_norm(x, p, f"{name}/LayerNorm_0"), p, f"{name}/token_masking"), axis=1
    )
    return weights.swapaxes(1, 2) @ x


def process_tokens(x: np.ndarray, p: Arrays, kind: str) -> np.ndarray:
    if kind == "transformer":
        x = x + p["Encoder_0/posembed_input/pos_embedding"]
        for name in (f"Encoder_0/encoderblock_{i}" for i in range(LAYERS)):
            u = layer_norm(x, p, f"{name}/LayerNorm_0")
            x = x + attention(u, u, p, f"{name}/MultiHeadDotProductAttention_0")
            x = x + mlp(layer_norm(x, p, f"{name}/LayerNorm_1"), p, f"{name}/MlpBlock_0")
        return layer_norm(x, p, "Encoder_0/encoder_norm")
    if kind == "mixer":
        for name in (f"MixerBlock_{i}" for i in range(LAYERS)):
            x = x + mlp_over_tokens(
                layer_norm(x, p, f"{name}/LayerNorm_0"), p, f"{name}/token_mixing"
            )
            x = x + mlp(layer_norm(x, p, f"{name}/LayerNorm_1"), p, f"{name}/channel_mixing")
        return layer_norm(x, p, "LayerNorm_0")
    for i in range(LAYERS):
        x = mlp(layer_norm(x, p, f"LayerNorm_{i}"), p, f"MlpBlock_{i}")
    return layer_norm(x, p, f"LayerNorm_{LAYERS}")


def erase_add(memory: np.ndarray, outputs: np.ndarray, p: Arrays) -> np.ndarray:
    name = "TokenAddEraseWrite_0"
    select = softmax(
        mlp(layer_norm(memory, p, f"{name}/LayerNorm_0"), p, f"{name}/MlpBlock_0"), axis=1
    )
    erase, add = (
        mlp(
            mlp_over_tokens(
                layer_norm(outputs, p, f"{name}/LayerNorm_{k}"), p, f"{name}/MlpBlock_{i}"
            ),
            p,
            f"{name}/MlpBlock_{i + 1}",
        )
        for k, i in ((1, 1), (2, 3))
    )
    kept, added = np.ones_like(memory), np.zeros_like(memory)
    for t in range(T):
        kept = kept * (1 - select[:, :, t, None] * erase[:, None, t])
        added = added + (1 - select[:, :, t, None] * add[:, None, t]) / T
    return memory * kept + added


def step(
    memory: np.ndarray, inputs: np.ndarray, p: Arrays, kinds: tuple[str, str, str, bool]
) -> tuple[np.ndarray, np.ndarray]:
    summary, process, write, positions = kinds
    read = np.concatenate([memory, inputs], axis=1)
    if positions:
        read = read + p["read_pos_embed/pos_embedding"]
    outputs = process_tokens(summarise(read, p, summary, 0), p, process)
    if write == "AddErase":
        return erase_add(memory, outputs, p), outputs
    joined = np.concatenate([memory, inputs, outputs], axis=1)
    if positions:
        joined = joined + p["write_pos_embed/pos_embedding"]
    return summarise(joined, p, write, 1), outputs


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@torch.no_grad()
def test_equals_the_restatement(kinds: tuple[str, str, str, bool], batch: int) -> None:
    rng, params = np.random.default_rng(batch), random_params(kinds)
    memory, inputs = rng.normal(size=(batch, m, D)), rng.normal(size=(STEPS, batch, n, D))
    for dtype in (np.float64, np.float32):
        typed = {key: value.astype(dtype) for key, value in params.items()}
        unit = load_scenic(typed, num_heads=HEADS)
        ours = torch.from_numpy(memory.astype(dtype))
        theirs = ours.double().numpy()
        exact = {key: value.astype(np.float64) for key, value in typed.items()}
        for tokens in inputs.astype(dtype):
            ours, outputs = unit(ours, torch.from_numpy(tokens))
            theirs, expected = step(theirs, tokens.astype(np.float64), exact, kinds)
            assert ours.numpy().dtype == outputs.numpy().dtype == dtype
            assert_same_but_rounding(outputs, expected)
            assert_same_but_rounding(ours, theirs)


# Accepted and refused inputs.

WHOLE = ("TL", "transformer", "TL", True)


def load(params: Arrays, num_heads: int = HEADS) -> TokenTuringMachineUnit:
    return load_scenic(params, num_heads=num_heads)


def test_unit_is_ready_to_run_and_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    before, params = torch.get_rng_state(), random_params(WHOLE)
    unit = load(params)
    assert torch.equal(torch.get_rng_state(), before)
    assert not unit.training
    assert all(
        parameter.is_contiguous() and parameter.requires_grad for parameter in unit.parameters()
    )
    params["TokenLearnerModuleV11_0/LayerNorm_0/scale"][:] = 7  # not shared
    assert not (unit.state_dict()["read.summarizer.norm.weight"] == 7).any()


@pytest.mark.parametrize(
    "kinds", [("MHA", "mixer", "MHA", False), ("TL", "mlp", "AddErase", False)], ids=str
)
def test_any_number_of_inputs_without_positional_embedding(
    kinds: tuple[str, str, str, bool],
) -> None:
    memory, outputs = load(random_params(kinds))(
        torch.zeros(2, m, D).double(), torch.ones(2, 9, D).double()
    )
    assert (memory.shape, outputs.shape) == ((2, m, D), (2, r, D))


def test_other_kinds_of_arrays() -> None:
    """Lists and tensors are accepted too. One array of doubles makes the whole unit double."""
    params: dict[str, object] = {
        k: torch.tensor(v).float() for k, v in random_params(WHOLE).items()
    }
    assert load_scenic(params, num_heads=HEADS).read.position.dtype == torch.float32
    params["Encoder_0/encoder_norm/bias"] = [0.5] * D
    assert load_scenic(params, num_heads=HEADS).read.position.dtype == torch.float64


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_every_missing_key_is_named(kinds: tuple[str, str, str, bool]) -> None:
    params = random_params(kinds)
    for key in params:
        rest = {name: value for name, value in params.items() if name != key}
        with pytest.raises(UserError, match=rf"missing: {re.escape(key)};"):
            load(rest)


def test_all_missing_and_unknown_keys_are_named() -> None:
    params = random_params(WHOLE)
    gone = [key for key in params if "encoderblock_0/MlpBlock" in key] + [
        "read_pos_embed/pos_embedding"
    ]
    strange = ["Encoder_0/encoderblock_0/Dense_0/kernel", "LayerNorm_0/scale", "opt/step"]
    given = {key: value for key, value in params.items() if key not in gone}
    with pytest.raises(UserError) as caught:
        load({**given, **dict.fromkeys(strange, np.zeros(D))})
    for key in gone + strange:
        assert key in str(caught.value)


def test_keys_with_a_prefix_are_refused() -> None:
    with pytest.raises(UserError, match=r"without 'params/'"):
        load({f"params/{key}": value for key, value in random_params(WHOLE).items()})


@pytest.mark.parametrize("kinds", KINDS[::5], ids=str)
def test_wrong_shapes_are_named(kinds: tuple[str, str, str, bool]) -> None:
    params = random_params(kinds)
    for key, value in params.items():
        with pytest.raises(UserError, match=re.escape(key)):
            load({**params, key: value[None]})
        with pytest.raises(UserError, match=re.escape(key)):
            load({**params, key: value[..., :-1]})


def test_a_shape_that_contradicts_one_other_names_both() -> None:
    params = random_params(WHOLE)
    with pytest.raises(UserError, match=r"read_pos_embed.*\(1, m\+n, 24\).*write_pos_embed"):
        load({**params, "read_pos_embed/pos_embedding": np.zeros((1, m + n + 1, D))})


@pytest.mark.parametrize("num_heads", [5, 4, 0])
def test_wrong_number_of_heads(num_heads: int) -> None:
    with pytest.raises(UserError, match=rf"num_heads is {num_heads}, .* give num_heads=3"):
        load(random_params(WHOLE), num_heads)


def test_integers_are_refused() -> None:
    with pytest.raises(UserError, match="Encoder_0/encoder_norm/bias is int64"):
        load({**random_params(WHOLE), "Encoder_0/encoder_norm/bias": np.zeros(D, np.int64)})
