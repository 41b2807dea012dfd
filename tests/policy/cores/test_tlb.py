"""The Temporal Latent Bottleneck, beyond what `test_every_core.py` tests for every core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import TemporalCore, UserError
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.tlb import TemporalLatentBottleneck, TemporalLatentBottleneckConfig
from ttm.policy.layers import AttentionBlock
from ttm.policy.openvino_engine import CompiledModule

WIDTH, NUM_INPUTS, CHUNK, TICKS = 8, 5, 5, 23
SMALL: dict[str, Any] = {
    "process_size": 2,
    "num_layers": 2,
    "bottleneck": 8,
    "num_latents": 3,
    "chunk_size": CHUNK,
    "num_heads": 2,
    "mlp_size": 16,
}


def make(num_inputs: int = NUM_INPUTS, **changes: Any) -> TemporalLatentBottleneck:
    torch.manual_seed(0)
    core = TemporalLatentBottleneckConfig(**{**SMALL, **changes}).build(WIDTH, num_inputs).double()
    with torch.no_grad():
        for parameter in core.parameters():  # so that biases matter
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return core


def window(ticks: int, batch: int = 1, num_inputs: int = NUM_INPUTS) -> Tensor:
    return torch.randn(batch, ticks, num_inputs, WIDTH, dtype=torch.float64)


def by_steps(
    core: TemporalCore, tokens: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, CoreState]:
    return TemporalCore.forward(core, tokens, None, starts)


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def plain_attention(block: AttentionBlock, x: Tensor, context: Tensor, seen: Tensor) -> Tensor:
    """Compute the block for x (S, D) and context (P, D) head by head. seen: (S, P) bool."""
    query = block.query(block.query_norm(x))
    key, value = block.key_value(block.context_norm(context)).split(WIDTH, dim=1)
    size = WIDTH // block.num_heads
    heads = []
    for part in (slice(h * size, (h + 1) * size) for h in range(block.num_heads)):
        scores = query[:, part] @ key[:, part].T / size**0.5
        heads.append(scores.masked_fill(~seen, -torch.inf).softmax(dim=1) @ value[:, part])
    x = x + block.out(torch.cat(heads, dim=1))
    return x + block.mlp(block.mlp_norm(x))


def plain(
    core: TemporalLatentBottleneck, tokens: Tensor, every: int
) -> tuple[Tensor, list[Tensor]]:
    """Compute the equations for one whole episode, (T, N, D), chunk by chunk.

    Returns the outputs, (T, r, D), and the latents of each chunk.
    """
    latents, outputs, history = core.initial_latents, [], []
    for chunk in tokens.split(core.chunk_size):
        history.append(latents)
        all_latents = torch.ones(len(chunk) * core.num_outputs, len(latents), dtype=torch.bool)
        tick = torch.arange(len(chunk)).repeat_interleave(core.num_outputs)
        x = (core.read(chunk) + core.position[: len(chunk)]).flatten(0, 1)
        for number, layer in enumerate(core.layers, start=1):
            x = plain_attention(layer, x, x, seen=tick[:, None] >= tick)
            if number % every == 0:
                x = plain_attention(core.crossings[number // every - 1], x, latents, all_latents)
        outputs.append(core.norm(x).unflatten(0, (-1, core.num_outputs)))
        if len(chunk) == core.chunk_size:
            latents = plain_attention(core.update, latents, x, all_latents.T)
    return torch.cat(outputs), [*history, latents]


@torch.no_grad()
@pytest.mark.parametrize(("layers", "every"), [(2, 1), (2, 2), (5, 2)])
def test_streaming_and_parallel_form_equal_a_plain_restatement(layers: int, every: int) -> None:
    core, tokens = make(num_layers=layers, cross_every=every), window(TICKS, batch=2)
    assert len(core.crossings) == layers // every
    outputs, state = core(tokens)
    stepped, stepped_state = by_steps(core, tokens)
    assert_close(outputs, stepped)
    for name, value in state.items():
        assert_close(value, stepped_state[name])
    for element in range(2):
        expected, history = plain(core, tokens[element], every)
        assert_close(outputs[element], expected)
        assert_close(state["latents"][element], history[-1])
    assert state["phase"].tolist() == [TICKS % CHUNK] * 2


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("tick", [0, 4, 5, 12, 22])
def test_a_tick_sees_all_that_was_and_nothing_that_will_be(
    every: int, streaming: bool, tick: int
) -> None:
    core, tokens = make(cross_every=every), window(TICKS).requires_grad_()
    outputs, _ = by_steps(core, tokens) if streaming else core(tokens)
    (outputs[:, tick] * torch.randn_like(outputs[:, tick])).sum().backward()
    by_tick = tokens.grad.abs().sum(dim=(0, 2, 3))  # type: ignore[union-attr]
    assert (by_tick[: tick + 1] > 0).all()
    assert (by_tick[tick + 1 :] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_batch_whose_episodes_start_at_different_ticks_equals_each_alone(
    every: int, streaming: bool
) -> None:
    core, tokens = make(cross_every=every), window(TICKS, batch=4)
    episodes = [[0], [0, 7], [0, 1, 2, 15], [0, 4, 10, 22]]
    starts = torch.zeros(4, TICKS, dtype=torch.bool)
    for element, ticks in enumerate(episodes):
        starts[element, ticks] = True
    outputs, state = by_steps(core, tokens, starts) if streaming else core(tokens, None, starts)
    for element, ticks in enumerate(episodes):
        for start, stop in zip(ticks, [*ticks[1:], TICKS], strict=True):
            alone, final = core(tokens[element : element + 1, start:stop])
            assert_close(outputs[element, start:stop], alone[0])
        for name, value in final.items():
            assert_close(state[name][element], value[0])


@torch.no_grad()
def test_latents_change_at_a_chunks_end_alone_and_the_chunk_is_dropped() -> None:
    core, tokens = make(), window(TICKS)
    state = core.initial_state(1)
    for tick, now in enumerate(tokens.unbind(dim=1), start=1):
        _, after = core.step(now, state)
        same = {name for name, value in after.items() if torch.equal(value, state[name])}
        of_latents = {"latents", "latent_keys", "latent_values"}
        assert same & of_latents == (set() if tick % CHUNK == 0 else of_latents)
        assert after["phase"].tolist() == [tick % CHUNK]
        held = [bool(row.any()) for row in after["rows"][0]]
        assert held == [place < tick % CHUNK for place in range(CHUNK)]
        assert all((after[name] == 0).all() for name in ("keys", "values")) == (tick % CHUNK == 0)
        state = after


@pytest.mark.parametrize(("every", "layers"), [(1, 2), (2, 2), (2, 5)])
def test_the_state_is_as_large_as_the_papers_figures_make_it(every: int, layers: int) -> None:
    core = make(num_inputs=1, process_size=1, cross_every=every, num_layers=layers)
    _, state = core(window(TICKS, num_inputs=1))
    floats = sum(value.numel() for value in state.values() if value.is_floating_point())
    latents, chunk = 3 * WIDTH, CHUNK * WIDTH
    assert floats == latents + 2 * chunk * layers + chunk + 2 * latents * (layers // every)


def test_a_tick_may_be_one_token_as_in_a_language_model() -> None:
    core, tokens = make(num_inputs=1, process_size=1), window(TICKS, batch=2, num_inputs=1)
    outputs, _ = core(tokens)
    assert outputs.shape == (2, TICKS, 1, WIDTH)
    assert_close(outputs, by_steps(core, tokens)[0])


def test_gradients_cross_chunks_through_the_latents() -> None:
    core, tokens = make(), window(3 * CHUNK)
    outputs, _ = core(tokens)
    (outputs[:, -1] * torch.randn_like(outputs[:, -1])).sum().backward()
    for parameter in core.update.parameters():
        assert parameter.grad is not None
    assert core.update.query.weight.grad.abs().sum() > 0  # type: ignore[union-attr]


@torch.no_grad()
def test_latents_and_positions_start_distinct_and_large() -> None:
    core = TemporalLatentBottleneckConfig().build(64, NUM_INPUTS)
    for vectors in (core.initial_latents, core.position.flatten(0, 1)):
        assert 0.9 < vectors.std() < 1.1
        apart = torch.cdist(vectors, vectors) + 100 * torch.eye(len(vectors))
        assert apart.min() > 5


@torch.no_grad()
def test_forward_takes_the_latents_of_a_state_and_not_what_older_weights_made_of_them() -> None:
    core, tokens = make(), window(CHUNK)
    _, state = core(tokens)
    before, _ = core(tokens, state)
    core.crossings[0].key_value.weight.mul_(2)
    after, _ = core(tokens, state)
    fresh, _ = core(tokens, {**state, **make_latent_keys(core, state["latents"])})
    assert not torch.equal(before, after)
    assert_close(after, fresh)


def make_latent_keys(core: TemporalLatentBottleneck, latents: Tensor) -> CoreState:
    pairs = [crossing.keys_values(latents) for crossing in core.crossings]
    return {
        "latent_keys": torch.stack([keys for keys, _ in pairs], dim=1),
        "latent_values": torch.stack([values for _, values in pairs], dim=1),
    }


class Step(nn.Module):
    """`step` with the tensors of the state in their order."""

    def __init__(self, core: TemporalCore, names: Sequence[str]) -> None:
        super().__init__()
        self.core, self.names = core, names

    def forward(self, tokens: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        outputs, state = self.core.step(tokens, dict(zip(self.names, values, strict=True)))
        return outputs, *(state[name] for name in self.names)


@torch.no_grad()
def test_the_step_runs_in_openvino_over_chunk_ends() -> None:
    core = make(cross_every=2).float()
    state, tokens = core.initial_state(1), window(2 * CHUNK + 2).float()
    # The example is from the middle of a chunk: its phase must not become a constant.
    _, example = core(tokens[:, :3])
    compiled = CompiledModule(Step(core, list(state)), [tokens[:, 0], *example.values()], threads=1)
    values = list(state.values())
    for now in tokens.unbind(dim=1):
        outputs, *values = compiled(now, *values)
        expected, state = core.step(now, state)
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-4)
        for got, wanted in zip(values, state.values(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("start", [None, 0, 7, 12])
def test_elements_that_are_cut_alike_equal_single_steps(taken: int, start: int | None) -> None:
    """This common case of training uses slices instead of indices.

    start: the tick at which an episode starts in all elements.
    """
    core, tokens = make(), window(TICKS, batch=2)
    _, state = core(window(taken + CHUNK, batch=2))
    starts = torch.zeros(2, TICKS, dtype=torch.bool)
    if start is not None:
        starts[:, start] = True
    outputs, after = core(tokens, state, starts)
    expected, expected_after = TemporalCore.forward(core, tokens, state, starts)
    assert_close(outputs, expected)
    for name, value in after.items():
        assert_close(value, expected_after[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cross_every": 3}, "cross_every is 3, more than the layers; give 2 or less"),
        ({"num_latents": 0}, "num_latents is 0; give 1 or more"),
        ({"chunk_size": 0}, "chunk_size is 0; give 1 or more"),
        ({"cross_every": 0}, "cross_every is 0; give 1 or more"),
        (
            {"num_heads": 3},
            "the Temporal Latent Bottleneck has 3 heads, which do not divide the width 8",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_told(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**changes)
