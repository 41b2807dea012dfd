"""Hourglass: its hierarchy, its equations, and its windows of ticks."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy import TemporalCore, UserError
from ttm.policy.cores.hourglass import (
    CarriedAttention,
    Hierarchy,
    Hourglass,
    HourglassConfig,
    RelativePosition,
    Scale,
    Stage,
    Valley,
    parse_hierarchy,
)
from ttm.policy.engines import CoreTickModule
from ttm.policy.openvino_engine import trace

WIDTH, NUM_INPUTS = 8, 2
SMALL = HourglassConfig(process_size=2, bottleneck=4, window=3, num_heads=2, mlp_size=8)
HIERARCHIES = ("2@1 1@4 2@1", "1@1 1@3 1@1", "1@1 1@2 1@4 1@2 1@1", "0@1 2@4 0@1")
RESAMPLINGS = tuple(product(("average", "linear", "attention"), ("repeat", "linear", "attention")))


def made(config: HourglassConfig) -> Hourglass:
    """Build a core in float64, with noise on every parameter, so that biases and embeddings matter."""
    core = config.build(WIDTH, NUM_INPUTS).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return core


def window(ticks: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, ticks, NUM_INPUTS, WIDTH, dtype=torch.float64)


def valley_of(core: Hourglass) -> Valley:
    valley = core.scales.valley
    assert valley is not None
    return valley


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'; give one of average, linear, attention"),
        ({"upsampling": "max"}, "upsampling is 'max'; give one of repeat, linear, attention"),
        ({"position": "learned"}, "position is 'learned'; give one of relative, rotary"),
        ({"window": 1}, "window is 1; give 2 or more"),
        ({"process_size": 0}, "process_size is 0; give 1 or more"),
        ({"num_heads": 3}, "the Hourglass has 3 heads, which do not divide the width 8"),
        ({"num_heads": 8, "position": "rotary"}, "not 1 of 8 channels; change num_heads"),
    ],
)
def test_choices_that_do_not_exist_or_fit_are_told(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SMALL, **values).build(WIDTH, NUM_INPUTS)


# One tick at a time.


def assert_streams(core: Hourglass, batch: int = 2) -> None:
    """Check that windows of several lengths equal as many ticks, in outputs and in state.

    The longest window is longer than the range of the counter of ticks.
    """
    tokens, state, outputs = window(25, batch), core.initial_state(batch), []
    for tick in range(25):
        output, state = core.step(tokens[:, tick], state)
        outputs.append(output)
        if tick + 1 in (1, 5, 12, 25):
            parallel, final = core(tokens[:, : tick + 1])
            assert (parallel - torch.stack(outputs, dim=1)).abs().max() < 1e-12
            assert all((final[name] - value).abs().max() < 1e-12 for name, value in state.items())


@torch.no_grad()
@pytest.mark.parametrize("hierarchy", HIERARCHIES)
@pytest.mark.parametrize(("pooling", "upsampling"), RESAMPLINGS)
def test_streaming_equals_parallel(hierarchy: str, pooling: str, upsampling: str) -> None:
    assert_streams(
        made(replace(SMALL, hierarchy=hierarchy, pooling=pooling, upsampling=upsampling))
    )  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_streaming_equals_parallel_with_rotary_positions_and_one_token(hierarchy: str) -> None:
    assert_streams(made(replace(SMALL, hierarchy=hierarchy, position="rotary", process_size=1)))


@torch.no_grad()
@pytest.mark.parametrize("position", ["relative", "rotary"])
def test_elements_of_a_batch_have_phases_of_their_own(position: str) -> None:
    core = made(replace(SMALL, hierarchy=HIERARCHIES[2], position=position))  # type: ignore[arg-type]
    tokens = window(16, batch=6)
    starts = torch.arange(16) == torch.tensor([[0], [1], [2], [5], [7], [12]])
    _, state = core(window(3, batch=6))
    parallel, final = core(tokens, state, starts)
    stepped, stepped_state = TemporalCore.forward(core, tokens, state, starts)
    for element, begin in enumerate(starts.nonzero()[:, 1].tolist()):
        alone, its_state = core(tokens[element : element + 1, begin:])
        for outputs, after in ((parallel, final), (stepped, stepped_state)):
            torch.testing.assert_close(outputs[element, begin:], alone[0], rtol=0, atol=1e-12)
            assert all((after[k][element] - v[0]).abs().max() < 1e-12 for k, v in its_state.items())


@torch.no_grad()
@pytest.mark.parametrize("size", [2, 5])
def test_the_state_has_the_size_that_is_told(size: int) -> None:
    core = replace(SMALL, hierarchy="2@1 4@4 2@1", window=size).build(WIDTH, NUM_INPUTS)
    state = core.initial_state(1)
    floats = sum(value.numel() for name, value in state.items() if name != "tick")
    assert floats == 2 * WIDTH * (16 * (size - 1) + 4 + 2 * (size - 1) + 2 * size)
    most = 0
    for now in window(50)[0].float().unbind():
        _, state = core.step(now[None], state)
        most = max(most, int(state["tick"]))
    assert most == 4 * size + 3


@torch.no_grad()
@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, hierarchy="1@3", process_size=3),
        replace(
            SMALL,
            hierarchy="1@2 1@4 1@2",
            pooling="linear",
            upsampling="linear",
            position="rotary",
            process_size=3,
        ),
    ],
)
def test_a_step_has_no_branch_that_a_traced_copy_would_miss(config: HourglassConfig) -> None:
    core = made(config).float().eval().requires_grad_(False)
    state = core.initial_state(1)
    example = [torch.zeros(1, NUM_INPUTS, WIDTH), *state.values()]
    traced = trace(CoreTickModule(copy.deepcopy(core), list(state)), example)
    for now in window(14)[0].float().unbind():
        outputs, after = core.step(now[None], state)
        values = traced(now[None], *state.values())
        for value, expected in zip(values, [outputs, *after.values()], strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-5)
        state = after


# Causality.


def seen_by(core: Hourglass, ticks: int) -> Tensor:
    """Return whether the output at a tick (row) has a gradient by the input at another, (T, T) bool."""
    tokens = window(ticks).requires_grad_()
    outputs = core(tokens)[0]
    # A random projection: the sum of a LayerNorm's output has no gradient at all.
    projected = (outputs * torch.randn_like(outputs)).sum(dim=(0, 2, 3))
    rows = [torch.autograd.grad(value, tokens, retain_graph=True)[0] for value in projected]
    return torch.stack([row.abs().sum(dim=(0, 2, 3)) > 0 for row in rows])


@pytest.mark.parametrize(("pooling", "upsampling"), RESAMPLINGS)
def test_outputs_depend_on_all_that_was_and_nothing_that_comes(
    pooling: str, upsampling: str
) -> None:
    config = replace(
        SMALL, hierarchy=HIERARCHIES[2], window=9, pooling=pooling, upsampling=upsampling
    )  # type: ignore[arg-type]
    assert torch.equal(seen_by(made(config), 9), torch.ones(9, 9).tril().bool())


@pytest.mark.parametrize(
    ("hierarchy", "reach"), [("1@1", 2), ("1@1 1@3 1@1", 14), ("2@1 2@3 2@1", 24)]
)
def test_coarse_layers_see_further_back(hierarchy: str, reach: int) -> None:
    """A layer at scale 1 reaches 2 ticks further back and one at scale 3 reaches 6 ticks.

    A group adds 2 ticks, and holding its result adds 2.
    """
    core = made(replace(SMALL, hierarchy=hierarchy, pooling="average", upsampling="repeat"))
    seen = seen_by(core, 36)
    assert max(row - int(ticks.nonzero()[0]) for row, ticks in enumerate(seen)) == reach


# The paper's form: pad, shift, cut.


def plain_attention(layer: CarriedAttention, x: Tensor, context: Tensor, age: Tensor) -> Tensor:
    """Compute the attention of Transformer-XL by its formula, head by head.

    x: (S, D); context: (P, D); age: (S, P), where keys of an age >= 0 are seen.
    """
    block, position = layer.block, layer.position
    assert isinstance(position, RelativePosition)
    keys, values = block.keys_values(context)
    query, mixed = block.query(block.query_norm(x)), torch.zeros_like(x)
    for head in range(block.num_heads):
        part = slice(head * block.head_size, (head + 1) * block.head_size)
        u, v = position.content_bias[head, 0], position.age_bias[head, 0]
        for i, ages in enumerate(age):
            seen = ages >= 0
            far = position.age(sines(ages[seen]))[:, part]
            scores = keys[seen][:, part] @ (query[i, part] + u) + far @ (query[i, part] + v)
            mixed[i, part] = (scores / block.head_size**0.5).softmax(dim=0) @ values[seen][:, part]
    x = x + block.out(mixed)
    out: Tensor = x + block.mlp(block.mlp_norm(x))
    return out


def sines(ages: Tensor) -> Tensor:
    angle = ages[:, None] * torch.tensor([10_000 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)])
    return torch.cat([angle.sin(), angle.cos()], dim=1).double()


def plain_scale(scale: Scale, x: Tensor) -> Tensor:
    """Map x, (T, D) with one token a tick, to (T, D). Attention sees the whole past."""
    tick = torch.arange(len(x))
    for layer in scale.before:
        assert isinstance(layer, CarriedAttention)
        x = plain_attention(layer, x, x, tick[:, None] - tick)
    if scale.valley is not None:
        x = x + plain_valley(scale.valley, x)
    for layer in scale.after:
        assert isinstance(layer, CarriedAttention)
        x = plain_attention(layer, x, x, tick[:, None] - tick)
    return x


def plain_valley(valley: Valley, x: Tensor) -> Tensor:
    k, ticks = valley.factor, torch.arange(len(x))
    padded = F.pad(x, (0, 0, 0, -len(x) % k))
    shifted = F.pad(padded, (0, 0, k - 1, 0))[: len(padded)]
    coarse = valley.shorten.pooling(shifted.view(1, -1, k, 1, WIDTH)).view(-1, WIDTH)
    made_at = torch.arange(len(coarse)) * k
    if valley.shorten.attention is not None:
        coarse = plain_attention(valley.shorten.attention, coarse, x, made_at[:, None] - ticks)
    coarse = plain_scale(valley.inner, coarse)
    repeated = coarse.repeat_interleave(k, dim=0)[: len(x)]
    up = valley.upsample.spread(repeated[None, :, None], (ticks % k)[None])[0, :, 0]
    if valley.upsample.attention is not None:
        up = plain_attention(valley.upsample.attention, x + up, coarse, ticks[:, None] - made_at)
    return up


@torch.no_grad()
@pytest.mark.parametrize(("pooling", "upsampling"), RESAMPLINGS[::2])
@pytest.mark.parametrize("hierarchy", ["1@1 1@3 1@1", "1@1 1@2 1@4 1@2 1@1"])
def test_the_model_is_the_papers(hierarchy: str, pooling: str, upsampling: str) -> None:
    config = replace(
        SMALL,
        hierarchy=hierarchy,
        pooling=pooling,
        upsampling=upsampling,
        process_size=1,
        window=20,
    )  # type: ignore[arg-type]
    core, tokens = made(config), window(11)
    x = torch.cat([core.read(now) + core.slot for now in tokens.unbind(dim=1)])[:, 0]
    expected = core.norm(plain_scale(core.scales, x))
    torch.testing.assert_close(core(tokens)[0][0, :, 0], expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_linear_upsampling_has_a_map_for_each_phase() -> None:
    core = made(replace(SMALL, hierarchy="1@3", upsampling="linear"))
    spread, coarse = valley_of(core).upsample.spread, window(7).unflatten(0, (1, 1))[0]
    by_phase = spread(coarse, torch.tensor([[0, 1, 2, 0, 1, 2, 0]]))
    weight, bias = spread.linear.weight.view(3, WIDTH, WIDTH), spread.linear.bias.view(3, WIDTH)
    for tick in range(7):
        expected = coarse[0, tick] @ weight[tick % 3].T + bias[tick % 3]
        torch.testing.assert_close(by_phase[0, tick], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_coarse_elements_are_held_between_their_ticks() -> None:
    core, state = made(replace(SMALL, hierarchy="1@1 1@3 1@1")), None
    held = []
    for now in window(7)[0].unbind():
        _, state = core(now[None, None], state)
        held.append(state["scale1.held"])
    changed = [not torch.equal(a, b) for a, b in pairwise(held)]
    assert changed == [False, False, True, False, False, True]


# The notation of hierarchies, its errors, and the linear cost model.


def test_hierarchies_are_read_from_the_outside_in() -> None:
    nested = parse_hierarchy("2@1 1@2 4@6 1@2 2@1")
    assert nested == Hierarchy((Stage(2, 1, 2), Stage(1, 2, 1), Stage(4, 6)))
    assert nested.period == 6
    assert parse_hierarchy("12@1") == Hierarchy((Stage(12, 1),))


def test_without_vanilla_layers_scale_1_is_still_the_outermost() -> None:
    assert (
        parse_hierarchy("4@4")
        == parse_hierarchy("0@1 4@4 0@1")
        == Hierarchy((Stage(0, 1), Stage(4, 4)))
    )
    assert parse_hierarchy("1@2 4@4 1@2") == parse_hierarchy("0@1 1@2 4@4 1@2 0@1")


def test_layers_before_and_after_may_differ() -> None:
    ended = parse_hierarchy("0@1 1@2 4@4 3@2 2@1")
    assert ended == Hierarchy((Stage(0, 1, 2), Stage(1, 2, 3), Stage(4, 4)))
    state = HourglassConfig(hierarchy="0@1 4@3 2@1").build(16, 2).initial_state(1)
    layers = {name for name in state if name.startswith(("scale1.before", "scale1.after"))}
    assert layers == {"scale1.after0", "scale1.after1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hierarchy '' is empty"),
        ("2@1 four@4 2@1", "has the entry 'four@4', which is not layers@scale"),
        ("2@1 4@4,2@1", "has the entry '4@4,2@1'"),
        ("2@1 4@4", "does not return by the way that it came"),
        ("2@1 4@4 1@2", "does not return by the way that it came"),
        ("2@1 4@4 4@4 2@1", "give one such as"),
        ("2@1 1@4 4@2 1@4 2@1", "goes from scale 4 to 2, not to a larger multiple"),
        ("2@1 1@2 4@3 1@2 2@1", "goes from scale 2 to 3"),
        ("2@1 1@1 2@1", "goes from scale 1 to 1"),
        ("1@0", "goes from scale 1 to 0"),
        ("2@1 0@4 2@1", "has no layer at its innermost scale"),
    ],
)
def test_faults_of_a_hierarchy_are_told(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HourglassConfig(hierarchy=text)
