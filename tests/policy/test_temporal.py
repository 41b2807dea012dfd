"""What holds for every temporal core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ttm.policy.temporal import TemporalCore
from ttm.policy.token_turing import TokenTuringConfig, TokenTuringMachine

WIDTH, NUM_INPUTS = 8, 5
TURING = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
CORES = {
    "token turing": lambda: TokenTuringMachine(WIDTH, NUM_INPUTS, TURING),
    "token turing, no positions": lambda: TokenTuringMachine(
        WIDTH, NUM_INPUTS, replace(TURING, positional_embedding=False)
    ),
    "token turing, no memory": lambda: TokenTuringMachine(WIDTH, NUM_INPUTS, replace(TURING, memory=False)),
}


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> TemporalCore:
    made: TemporalCore = CORES[request.param]()
    return made


def window(batch: int, ticks: int) -> Tensor:
    return torch.randn(batch, ticks, NUM_INPUTS, WIDTH)


def test_forward_equals_steps(core: TemporalCore) -> None:
    tokens = window(2, 9)
    outputs, final = core(tokens)
    state = core.initial_state(2)
    for tick in range(9):
        output, state = core.step(tokens[:, tick], state)
        torch.testing.assert_close(output, outputs[:, tick], rtol=0, atol=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(value, final[name], rtol=0, atol=1e-5)


def test_windows_go_on_from_the_state_given(core: TemporalCore) -> None:
    tokens = window(2, 8)
    whole, _ = core(tokens)
    _, state = core(tokens[:, :5])
    torch.testing.assert_close(core(tokens[:, 5:], state)[0], whole[:, 5:], rtol=0, atol=1e-5)


def test_episode_start_resets_its_element_alone(core: TemporalCore) -> None:
    tokens, starts = window(3, 6), torch.zeros(3, 6, dtype=torch.bool)
    starts[1, 2], starts[2, 5] = True, True
    outputs, _ = core(tokens, None, starts)
    torch.testing.assert_close(outputs[0], core(tokens[:1])[0][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs[1, 2:], core(tokens[1:2, 2:])[0][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs[2, 5:], core(tokens[2:, 5:])[0][0], rtol=0, atol=1e-5)


def test_state_keeps_its_size_and_is_not_changed_in_place(core: TemporalCore) -> None:
    state = core.initial_state(2)
    before = {name: value.clone() for name, value in state.items()}
    _, after = core.step(window(2, 1)[:, 0], state)
    assert {name: value.shape for name, value in after.items()} == {n: v.shape for n, v in before.items()}
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_outputs_do_not_see_the_future(core: TemporalCore) -> None:
    tokens = window(1, 5)
    other = tokens.clone()
    other[:, 3:] = window(1, 2)
    assert torch.equal(core(tokens)[0][:, :3], core(other)[0][:, :3])
