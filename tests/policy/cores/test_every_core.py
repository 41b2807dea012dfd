"""Properties that hold for every temporal core."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy import CoreConfig, TemporalCore
from ttm.policy.cores.baselines import (
    CausalTransformerConfig,
    FrameStackingConfig,
    LstmConfig,
    RecurrentTransformerConfig,
    TemporalMixerConfig,
)
from ttm.policy.cores.core import CoreState, reset_where
from ttm.policy.cores.hourglass import HourglassConfig
from ttm.policy.cores.registry import CORES as KINDS
from ttm.policy.cores.registry import config_class, core_from_dict, core_to_dict
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm import TokenTuringConfig

WIDTH, NUM_INPUTS = 8, 5
SIZES = {"process_size": 3, "num_layers": 1, "bottleneck": 8}
TURING = TokenTuringConfig(memory_size=4, num_heads=2, mlp_size=16, **SIZES)
CAUSAL = CausalTransformerConfig(window=4, num_heads=2, mlp_size=16, **SIZES)
LSTM = LstmConfig(**SIZES)
MIXER = TemporalMixerConfig(window=3, mlp_size=16, token_mixing_size=6, **SIZES)
LATENTS = TemporalLatentBottleneckConfig(
    num_latents=4, chunk_size=3, num_heads=2, mlp_size=16, **SIZES
)
HOURGLASS = HourglassConfig(
    hierarchy="1@1 1@2 1@1", window=3, num_heads=2, mlp_size=16, process_size=3, bottleneck=8
)
CORES: dict[str, CoreConfig] = {
    "token turing": TURING,
    "token turing, no positions": replace(TURING, positional_embedding=False),
    "token turing, no memory": replace(TURING, memory=False),
    "token turing, learned start": replace(TURING, initial_memory="learned"),
    "token turing, queries with heads, mixer": replace(TURING, summarizer="mha", processor="mixer"),
    "token turing, queries, mlp": replace(TURING, summarizer="query", processor="mlp"),
    "token turing, pooling": replace(TURING, summarizer="pooling"),
    "token turing, erase and add": replace(TURING, write="erase_add", initial_memory="learned"),
    "token turing, concatenation": replace(TURING, write="concatenate"),
    "token turing, gated": replace(TURING, write="gated"),
    "token turing, ring": replace(TURING, write="ring"),
    "token turing, ring of the inputs alone": replace(TURING, write="ring", write_outputs=False),
    "token turing, attending read, gated": replace(TURING, read="attend", write="gated"),
    "token turing, attending read, memory processed": replace(
        TURING, read="attend", process_memory=True
    ),
    "token turing, gated write of the inputs alone": replace(
        TURING, write="gated", write_outputs=False, process_memory=True
    ),
    "token turing, learned start, write of the inputs alone": replace(
        TURING, write_outputs=False, initial_memory="learned"
    ),
    "lstm": LSTM,
    "lstm, two layers": replace(LSTM, num_layers=2),
    "causal transformer": CAUSAL,
    "causal transformer, three layers": replace(CAUSAL, num_layers=3, window=3),
    "causal transformer, window beyond the episode": replace(CAUSAL, window=20),
    "recurrent transformer": RecurrentTransformerConfig(
        memory_size=4, num_heads=2, mlp_size=16, **SIZES
    ),
    "mixer": MIXER,
    "mixer, window beyond the episode": replace(MIXER, window=20),
    "frame stacking": FrameStackingConfig(window=3, num_heads=2, mlp_size=16, **SIZES),
    "latent bottleneck": LATENTS,
    "latent bottleneck, four layers, chunks of two": replace(LATENTS, chunk_size=2, num_layers=4),
    "latent bottleneck, a crossing after every second": replace(
        LATENTS, num_layers=3, cross_every=2
    ),
    "latent bottleneck, chunks of one": replace(LATENTS, chunk_size=1),
    "hourglass": HOURGLASS,
    "hourglass, nested, linear, rotary": replace(
        HOURGLASS,
        hierarchy="1@1 1@2 1@4 2@2 0@1",
        pooling="linear",
        upsampling="linear",
        position="rotary",
    ),
    "hourglass, no vanilla layers, averages, repeating": replace(
        HOURGLASS, hierarchy="1@2", pooling="average", upsampling="repeat"
    ),
    "hourglass, full length, window beyond the episode": replace(
        HOURGLASS, hierarchy="2@1", window=20
    ),
}
MEMORYLESS = "token turing, no memory"
GROWS = "token turing, erase and add"
"""The core whose memory, as published, is not bounded."""


@pytest.fixture(params=CORES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def core(name: str) -> TemporalCore:
    return CORES[name].build(WIDTH, NUM_INPUTS)


def window(batch: int, ticks: int) -> Tensor:
    return torch.randn(batch, ticks, NUM_INPUTS, WIDTH)


def by_steps(
    core: TemporalCore, tokens: Tensor, state: CoreState | None = None, starts: Tensor | None = None
) -> tuple[Tensor, CoreState]:
    """Run the loop over `step`, which `forward` must equal in cores that override it."""
    return TemporalCore.forward(core, tokens, state, starts)


def assert_same_states(one: CoreState, other: CoreState) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert_same_but_rounding(value, other[name])


def test_all_kinds_are_tested() -> None:
    assert {type(config) for config in CORES.values()} == {config_class(kind) for kind in KINDS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_equals_steps(core: TemporalCore, dtype: torch.dtype) -> None:
    core, tokens = core.to(dtype), window(2, 9).to(dtype)
    outputs, final = core(tokens)
    stepped, state = by_steps(core, tokens)
    assert_same_but_rounding(stepped, outputs)
    assert_same_states(state, final)


def test_forward_equals_steps_from_any_state_and_with_resets(core: TemporalCore) -> None:
    core = core.double()
    _, state = core(window(4, 7).double())
    tokens, starts = window(4, 12).double(), torch.zeros(4, 12, dtype=torch.bool)
    starts[1, 0], starts[2, 5], starts[2, 7], starts[3, 10] = True, True, True, True
    outputs, final = core(tokens, state, starts)
    stepped, stepped_state = by_steps(core, tokens, state, starts)
    assert_same_but_rounding(stepped, outputs)
    assert_same_states(stepped_state, final)


def test_windows_go_on_from_the_state_given(core: TemporalCore) -> None:
    tokens = window(2, 8)
    whole, _ = core(tokens)
    _, state = core(tokens[:, :5])
    assert_same_but_rounding(core(tokens[:, 5:], state)[0], whole[:, 5:])


def test_episode_start_resets_its_element_alone(core: TemporalCore) -> None:
    tokens, starts = window(3, 6), torch.zeros(3, 6, dtype=torch.bool)
    starts[1, 2], starts[2, 5] = True, True
    outputs, _ = core(tokens, None, starts)
    assert_same_but_rounding(outputs[0], core(tokens[:1])[0][0])
    assert_same_but_rounding(outputs[1, 2:], core(tokens[1:2, 2:])[0][0])
    assert_same_but_rounding(outputs[2, 5:], core(tokens[2:, 5:])[0][0])


@torch.no_grad()
def test_state_keeps_its_size_and_is_not_changed_in_place(core: TemporalCore) -> None:
    first = core.initial_state(2)
    sizes = {name: (value.shape, value.dtype) for name, value in first.items()}
    state = first
    for now in window(2, 50).unbind(dim=1):
        before = {name: value.clone() for name, value in state.items()}
        _, after = core.step(now, state)
        assert {name: (value.shape, value.dtype) for name, value in after.items()} == sizes
        assert all(torch.equal(state[name], before[name]) for name in before)
        state = after
    assert {
        name: (value.shape, value.dtype) for name, value in core(window(2, 5), state)[1].items()
    } == sizes


def test_outputs_do_not_see_the_future(core: TemporalCore) -> None:
    tokens = window(1, 5)
    other = tokens.clone()
    other[:, 3:] = window(1, 2)
    assert torch.equal(core(tokens)[0][:, :3], core(other)[0][:, :3])


def test_the_past_matters_where_there_is_memory_and_the_future_never(
    name: str, core: TemporalCore
) -> None:
    tokens = window(2, 5).requires_grad_()
    outputs, _ = core(tokens)
    # A random projection is needed, as the sum of the outputs of a LayerNorm has no gradient.
    (outputs[:, 2] * torch.randn_like(outputs[:, 2])).sum().backward()
    by_tick = tokens.grad.abs().sum(dim=(0, 2, 3))  # type: ignore[union-attr]
    assert by_tick[2] > 0
    assert (by_tick[:2] > 0).tolist() == [name != MEMORYLESS] * 2
    assert (by_tick[3:] == 0).all()


def test_nothing_comes_through_an_episodes_start(core: TemporalCore) -> None:
    tokens, starts = window(1, 6).requires_grad_(), torch.zeros(1, 6, dtype=torch.bool)
    starts[0, 3] = True
    outputs, state = core(tokens, None, starts)
    parts = [outputs[:, 3:], *(value for value in state.values() if value.is_floating_point())]
    torch.stack([(part * torch.randn_like(part)).sum() for part in parts]).sum().backward()
    assert tokens.grad is not None
    assert (tokens.grad[0, :3] == 0).all()


@torch.no_grad()
def test_long_episodes_stay_finite(name: str, core: TemporalCore) -> None:
    ticks = 50 if name == GROWS else 500
    outputs, state = core(window(1, ticks))
    assert outputs.isfinite().all()
    assert all(value.isfinite().all() for value in state.values())


def test_every_parameter_learns(name: str, core: TemporalCore) -> None:
    outputs, _ = core(window(2, 4))
    (outputs * torch.randn_like(outputs)).sum().backward()
    idle = {name for name, parameter in core.named_parameters() if parameter.grad is None}
    assert (
        all(parameter.startswith("unit.write") for parameter in idle)
        if name == MEMORYLESS
        else not idle
    )


def test_round_trip_through_plain_data_and_weights(name: str, core: TemporalCore) -> None:
    data = json.loads(json.dumps(core_to_dict(CORES[name])))
    assert core_from_dict(data) == CORES[name]
    other = core_from_dict(data).build(WIDTH, NUM_INPUTS)
    other.load_state_dict(core.state_dict())
    tokens = window(1, 3)
    assert torch.equal(core(tokens)[0], other(tokens)[0])


SHOWN = {
    "token turing": (),
    "causal transformer": (),
    "latent bottleneck": ("latents",),
    "hourglass, nested, linear, rotary": ("scale1.held", "scale2.held"),
    "hourglass, full length, window beyond the episode": (),
}
"""Core -> the tensors that are shown as its memory. Caches are, where a core has nothing else."""


@pytest.mark.parametrize("chosen", SHOWN)
def test_what_is_shown_as_memory(chosen: str) -> None:
    assert CORES[chosen].build(WIDTH, NUM_INPUTS).memory_names == SHOWN[chosen]


@torch.no_grad()
def test_norms_are_those_of_the_memorys_vectors(core: TemporalCore) -> None:
    _, state = core(window(2, 7))
    rows = [
        [
            float(np.linalg.norm(vector))
            for name in chosen
            for vector in np_rows(state[name][element])
        ]
        for chosen in [core.memory_names or [n for n, v in state.items() if v.ndim > 2]]
        for element in range(2)
    ]
    norms = core.memory_norms(state)
    np.testing.assert_allclose(norms.numpy(), rows, rtol=1e-6)
    assert norms.isfinite().all()


def np_rows(value: Tensor) -> np.ndarray:
    return value.double().numpy().reshape(-1, value.shape[-1])


@torch.no_grad()
def test_norms_of_a_memory_that_ran_away_are_numbers() -> None:
    core = CORES["token turing"].build(WIDTH, NUM_INPUTS)
    state = {"memory": torch.full((1, 4, WIDTH), 1e30)}
    assert core.memory_norms(state)[0].tolist() == pytest.approx([WIDTH**0.5 * 1e30] * 4)


def test_bfloat16_arithmetic_trains(core: TemporalCore) -> None:
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[1, 3] = True
    with torch.autocast("cpu", torch.bfloat16):
        _, state = core(window(2, 6))
        outputs, _ = core(window(2, 6), state, starts)
    outputs.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in core.parameters() if p.grad is not None)


def test_an_lstm_is_in_float32_where_a_cpu_has_none_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = CORES["lstm"].build(WIDTH, NUM_INPUTS)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    ran = []
    core.lstm.register_forward_pre_hook(lambda _, given: ran.append(given[0].dtype))  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = core(window(2, 6))
    assert ran == [torch.float32]
    assert all(part.dtype == torch.float32 for part in state.values())
    assert outputs.isfinite().all()


def test_reset_where_takes_states_of_any_rank_and_of_whole_numbers() -> None:
    state = {"count": torch.tensor([3, 4]), "memory": torch.ones(2, 3, 4), "norm": torch.ones(2)}
    initial = {
        "count": torch.tensor([0, 0]),
        "memory": torch.zeros(2, 3, 4),
        "norm": torch.zeros(2),
    }
    made = reset_where(torch.tensor([True, False]), state, initial)
    assert made["count"].tolist() == [0, 4]
    assert made["count"].dtype == torch.int64
    assert made["norm"].tolist() == [0, 1]
    assert (made["memory"][0] == 0).all()
    assert (made["memory"][1] == 1).all()
