"""The TTM: the authors' numbers, and what memory may and may not do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ttm.policy.mlp import Mlp
from ttm.policy.token_learner import TokenSummarizer
from ttm.policy.token_turing import PositionedSummarizer, TokenTuringConfig, TokenTuringMachine
from ttm.policy.transformer import EncoderBlock, TransformerProcessor

GOLDEN = Path(__file__).parents[3] / "shared" / "goldens" / "a_tl_transformer_pos.npz"
CONFIG = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
WIDTH, NUM_INPUTS = 8, 5

Arrays = Mapping[str, np.ndarray]


def put(parameter: nn.Parameter, values: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values))


def load_norm(norm: nn.LayerNorm, arrays: Arrays, name: str) -> None:
    put(norm.weight, arrays[f"params/{name}/scale"])
    put(norm.bias, arrays[f"params/{name}/bias"])


def load_mlp(mlp: Mlp, arrays: Arrays, name: str) -> None:
    for layer, dense in ((mlp.hidden, "Dense_0"), (mlp.out, "Dense_1")):
        put(layer.weight, arrays[f"params/{name}/{dense}/kernel"].T)
        put(layer.bias, arrays[f"params/{name}/{dense}/bias"])


def load_summarizer(module: PositionedSummarizer, arrays: Arrays, name: str, position: str) -> None:
    assert module.position is not None
    assert isinstance(module.summarizer, TokenSummarizer)
    put(module.position, arrays[f"params/{position}/pos_embedding"])
    load_norm(module.summarizer.norm, arrays, f"{name}/LayerNorm_0")
    load_mlp(module.summarizer.mlp, arrays, f"{name}/token_masking")


def load_block(block: EncoderBlock, arrays: Arrays, name: str, width: int) -> None:
    attention = f"params/{name}/MultiHeadDotProductAttention_0"
    kernels = [
        arrays[f"{attention}/{part}/kernel"].reshape(width, width).T for part in ("query", "key", "value")
    ]
    biases = [arrays[f"{attention}/{part}/bias"].reshape(width) for part in ("query", "key", "value")]
    put(block.attention.qkv.weight, np.concatenate(kernels))
    put(block.attention.qkv.bias, np.concatenate(biases))
    put(block.attention.out.weight, arrays[f"{attention}/out/kernel"].reshape(width, width).T)
    put(block.attention.out.bias, arrays[f"{attention}/out/bias"])
    load_norm(block.attention_norm, arrays, f"{name}/LayerNorm_0")
    load_norm(block.mlp_norm, arrays, f"{name}/LayerNorm_1")
    load_mlp(block.mlp, arrays, f"{name}/MlpBlock_0")


def load_golden(arrays: Arrays) -> TokenTuringMachine:
    sizes = json.loads(str(arrays["config"]))
    config = TokenTuringConfig(
        memory_size=sizes["memory_size"],
        process_size=sizes["process_size"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_size=sizes["mlp_dim"],
        bottleneck=sizes["bottleneck_dim"],
    )
    machine = TokenTuringMachine(sizes["d"], sizes["n"], config)
    read, process, write = machine.unit.read, machine.unit.process, machine.unit.write
    assert isinstance(read, PositionedSummarizer)
    assert isinstance(process, TransformerProcessor)
    assert isinstance(write, PositionedSummarizer)
    load_summarizer(read, arrays, "TokenLearnerModuleV11_0", "read_pos_embed")
    load_summarizer(write, arrays, "TokenLearnerModuleV11_1", "write_pos_embed")
    put(process.position, arrays["params/Encoder_0/posembed_input/pos_embedding"])
    load_norm(process.norm, arrays, "Encoder_0/encoder_norm")
    for i, block in enumerate(process.blocks):
        assert isinstance(block, EncoderBlock)
        load_block(block, arrays, f"Encoder_0/encoderblock_{i}", sizes["d"])
    return machine


@pytest.mark.skipif(not GOLDEN.exists(), reason="the authors' numbers lie outside of the repository")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_equals_the_authors_code(dtype: torch.dtype, tolerance: float) -> None:
    with np.load(GOLDEN) as file:
        arrays = dict(file)
    machine = load_golden(arrays).to(dtype)
    inputs = torch.from_numpy(arrays["inputs"]).to(dtype)
    state = machine.initial_state(inputs.shape[0])
    for step in range(inputs.shape[1]):
        read = machine.unit.read(state["memory"], inputs[:, step])
        outputs, state = machine.step(inputs[:, step], state)
        for found, name in ((read, "read"), (outputs, "outputs"), (state["memory"], "memory")):
            expected = torch.from_numpy(arrays[name][:, step]).to(dtype)
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=f"{name} at step {step}")


def test_summary_is_a_weighted_mean() -> None:
    summarizer = TokenSummarizer(WIDTH, 3)
    same = torch.randn(2, 1, WIDTH).expand(2, 7, WIDTH)
    torch.testing.assert_close(summarizer(same), same[:, :3])


def test_memory_starts_at_zero() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, CONFIG)
    assert torch.equal(machine.initial_state(2)["memory"], torch.zeros(2, 4, WIDTH))


def test_memory_carries_the_past() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, CONFIG)
    tokens = torch.randn(1, 3, NUM_INPUTS, WIDTH)
    other = tokens.clone()
    other[:, 0] = torch.randn(1, NUM_INPUTS, WIDTH)
    last, last_other = machine(tokens)[0][:, -1], machine(other)[0][:, -1]
    assert not torch.allclose(last, last_other)


def test_without_memory_the_past_does_not_count() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, replace(CONFIG, memory=False))
    tokens = torch.randn(1, 3, NUM_INPUTS, WIDTH)
    other = tokens.clone()
    other[:, 0] = torch.randn(1, NUM_INPUTS, WIDTH)
    outputs, state = machine(tokens)
    assert torch.equal(outputs[:, -1], machine(other)[0][:, -1])
    assert not state["memory"].any()


def test_without_positional_embedding_the_order_of_inputs_does_not_count() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, replace(CONFIG, positional_embedding=False))
    tokens = torch.randn(1, 1, NUM_INPUTS, WIDTH)
    torch.testing.assert_close(machine(tokens)[0], machine(tokens.flip(2))[0])
