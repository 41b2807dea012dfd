"""The Token Turing Machine as published, and the layers that it is made of."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy import UserError, load_scenic
from ttm.policy.cores.registry import with_options
from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachine
from ttm.policy.cores.ttm_variants import MlpProcessor
from ttm.policy.layers import MlpMixer, TransformerEncoder

GOLDENS = Path(__file__).parents[4] / "shared" / "goldens"
CONFIG = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
WIDTH, NUM_INPUTS = 8, 5
TYPES = get_type_hints(TokenTuringConfig)
CHOICES = {
    field.name: get_args(TYPES[field.name])
    for field in fields(TokenTuringConfig)
    if get_args(TYPES[field.name])
}
"""Field -> the values that its type lists."""
SIZES = [field.name for field in fields(TokenTuringConfig) if TYPES[field.name] is int]


@pytest.mark.skipif(
    not GOLDENS.exists(), reason="the authors' numbers lie outside of the repository"
)
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("a_tl_transformer_pos", np.float64, 1e-6),
        ("a_tl_transformer_pos", np.float32, 1e-5),
        ("b_tl_mixer", np.float64, 1e-6),
        ("b_tl_mixer", np.float32, 1e-5),
        ("d_adderase_transformer", np.float64, 1e-6),
        ("d_adderase_transformer", np.float32, 2e-5),
    ],
)
@torch.no_grad()
def test_equals_the_authors_code(name: str, dtype: type[np.floating], tolerance: float) -> None:
    with np.load(GOLDENS / f"{name}.npz") as file:
        sizes = json.loads(str(file["config"]))
        arrays = {key: file[key].astype(dtype) for key in file.files if key != "config"}
    params = {
        key.removeprefix("params/"): value
        for key, value in arrays.items()
        if key.startswith("params/")
    }
    unit = load_scenic(params, num_heads=sizes["num_heads"])
    expected = {
        key: torch.from_numpy(arrays[key]) for key in ("inputs", "read", "outputs", "memory")
    }
    memory = torch.from_numpy(arrays["memory0"])
    for step in range(sizes["steps"]):
        inputs = expected["inputs"][:, step]
        found = {"read": unit.read(memory, inputs)}
        memory, found["outputs"] = unit(memory, inputs)
        for key, value in {**found, "memory": memory}.items():
            assert value.dtype == expected[key].dtype
            torch.testing.assert_close(
                value, expected[key][:, step], rtol=0, atol=tolerance, msg=f"{key} at step {step}"
            )


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
    machine = replace(CONFIG, memory=False).build(WIDTH, NUM_INPUTS)
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


def test_names_of_parameters_that_checkpoints_hold() -> None:
    names = set(TokenTuringMachine(WIDTH, NUM_INPUTS, CONFIG).state_dict())
    block = "unit.process.blocks.0"
    summarizer = [f"summarizer.{layer}" for layer in ("norm", "mlp.hidden", "mlp.out")]
    layers = [f"unit.{part}.{layer}" for part in ("read", "write") for layer in summarizer]
    layers += [f"{block}.{layer}" for layer in ("attention_norm", "attention.qkv", "attention.out")]
    layers += [f"{block}.{layer}" for layer in ("mlp_norm", "mlp.hidden", "mlp.out")]
    layers += ["unit.process.norm"]
    assert names == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")} | {
        f"unit.{part}.position" for part in ("read", "process", "write")
    }


@pytest.mark.parametrize("summarizer", CHOICES["summarizer"])
@pytest.mark.parametrize("processor", CHOICES["processor"])
@pytest.mark.parametrize("write", CHOICES["write"])
@pytest.mark.parametrize("read", CHOICES["read"])
def test_every_combination_runs_and_learns(
    summarizer: str, processor: str, write: str, read: str
) -> None:
    config = with_options(
        CONFIG,
        [
            f"summarizer={summarizer}",
            f"processor={processor}",
            f"write={write}",
            f"read={read}",
            "initial_memory=learned",
        ],
    )
    machine = config.build(WIDTH, NUM_INPUTS)
    outputs, state = machine(torch.randn(2, 3, NUM_INPUTS, WIDTH))
    assert outputs.shape == (2, 3, 3, WIDTH)
    assert state["memory"].shape == (2, 4, WIDTH)
    (outputs.square().sum() + state["memory"].square().sum()).backward()
    assert all(parameter.grad is not None for parameter in machine.parameters())


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_kinds_are_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=f"{name} is 'magic'; give one of {', '.join(CHOICES[name])}"
    ):
        with_options(TokenTuringConfig(), [f"{name}=magic"])


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is -1"):
        replace(CONFIG, **{name: -1})


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="3 heads, which do not divide the width 8"):
        replace(CONFIG, num_heads=3).build(WIDTH, NUM_INPUTS)
    with pytest.raises(UserError, match="'mha' has 8 heads, which do not divide the width 12"):
        replace(CONFIG, summarizer="mha", num_heads=2).build(12, NUM_INPUTS)
    replace(CONFIG, processor="mixer", num_heads=3).build(WIDTH, NUM_INPUTS)  # a Mixer has no heads


def test_erase_add_from_zero_memory_is_refused() -> None:
    with pytest.raises(UserError, match="give initial_memory=learned"):
        TokenTuringConfig(write="erase_add")


def test_learned_memory_is_where_every_episode_starts_and_gets_gradient() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, replace(CONFIG, initial_memory="learned"))
    assert machine.initial_memory is not None
    start = machine.initial_state(2)["memory"]
    assert torch.equal(start, machine.initial_memory.expand(2, -1, -1))
    assert start.std() > 0
    resets = torch.tensor([[False, False], [False, True]])
    machine(torch.randn(2, 2, NUM_INPUTS, WIDTH), None, resets)[0].square().sum().backward()
    assert machine.initial_memory.grad is not None
    assert machine.initial_memory.grad.abs().sum() > 0


def test_the_state_handed_out_is_not_the_parameter_itself() -> None:
    machine = TokenTuringMachine(WIDTH, NUM_INPUTS, replace(CONFIG, initial_memory="learned"))
    assert machine.initial_memory is not None
    before = machine.initial_memory.detach().clone()
    machine.initial_state(1)["memory"].detach().fill_(7)
    assert torch.equal(machine.initial_memory, before)


def test_without_memory_a_learned_start_comes_back_at_every_step() -> None:
    config = replace(CONFIG, initial_memory="learned", memory=False)
    machine = config.build(WIDTH, NUM_INPUTS)
    outputs, state = machine(torch.randn(2, 1, NUM_INPUTS, WIDTH).expand(-1, 3, -1, -1))
    assert torch.equal(state["memory"], machine.initial_state(2)["memory"])
    assert_same_but_rounding(outputs[:, 0], outputs[:, 2])


def test_mixer_mixes_tokens_and_mlp_does_not() -> None:
    tokens = torch.randn(1, 3, WIDTH)
    other = tokens.clone()
    other[:, 2] = torch.randn(WIDTH)
    mixer, mlp = MlpMixer(WIDTH, 3, 2, 128, 16), MlpProcessor(WIDTH, 3, CONFIG)
    assert not torch.allclose(mixer(tokens)[:, 0], mixer(other)[:, 0])
    assert torch.equal(mlp(tokens)[:, 0], mlp(other)[:, 0])


def encoder(num_layers: int, num_outputs: int | None) -> TransformerEncoder:
    torch.manual_seed(0)
    return TransformerEncoder(8, 6, num_layers, 2, 16, num_outputs).double()


@pytest.mark.parametrize("num_layers", [0, 1, 3])
@torch.no_grad()
def test_its_outputs_are_the_first_of_all_tokens(num_layers: int) -> None:
    tokens = torch.randn(2, 6, 8, dtype=torch.float64)
    found = encoder(num_layers, 4)(tokens)
    torch.testing.assert_close(found, encoder(num_layers, None)(tokens)[:, :4])


@torch.no_grad()
def test_the_last_layer_computes_no_others() -> None:
    made, shapes = encoder(2, 4), list[torch.Size]()

    def note(module: object, args: tuple[Tensor, ...], output: Tensor) -> None:
        shapes.append(output.shape)

    for block in made.blocks:
        block.register_forward_hook(note)
    made(torch.randn(2, 6, 8, dtype=torch.float64))
    assert shapes == [(2, 6, 8), (2, 4, 8)]
