"""The baselines, beyond what `test_every_core.py` tests for every core."""

from __future__ import annotations

import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy import CoreConfig, TemporalCore, UserError
from ttm.policy.cores.baselines import (
    CausalBlock,
    CausalTransformer,
    CausalTransformerConfig,
    FrameStackingConfig,
    LstmConfig,
    LstmCore,
    RecurrentTransformerConfig,
    TemporalMixerConfig,
)

WIDTH, NUM_INPUTS, TOKENS = 8, 5, 3


def causal(num_layers: int, window: int) -> CausalTransformer:
    config = CausalTransformerConfig(
        process_size=TOKENS, num_layers=num_layers, window=window, num_heads=2, mlp_size=16
    )
    core = config.build(WIDTH, NUM_INPUTS).double()
    with torch.no_grad():
        for parameter in core.parameters():  # so that biases and embeddings matter
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return core


def window(ticks: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, ticks, NUM_INPUTS, WIDTH, dtype=torch.float64)


def reach(core: TemporalCore, ticks: int) -> int:
    """Return how many ticks back the last output sees."""
    tokens = window(ticks).requires_grad_()
    output = core(tokens)[0][:, -1]
    (output * torch.randn_like(output)).sum().backward()
    seen = tokens.grad.abs().sum(dim=(0, 2, 3)) > 0  # type: ignore[union-attr]
    first = int(seen.nonzero()[0])
    assert seen[first:].all()
    return ticks - 1 - first


@pytest.mark.parametrize(("num_layers", "size"), [(1, 2), (1, 4), (2, 3), (3, 3)])
def test_layers_of_a_causal_transformer_add_up_their_windows(num_layers: int, size: int) -> None:
    core = causal(num_layers, size)
    assert reach(core, ticks=12) == num_layers * (size - 1)
    tokens, state = window(12).requires_grad_(), core.initial_state(1)
    for now in tokens.unbind(dim=1):
        output, state = core.step(now, state)
    (output * torch.randn_like(output)).sum().backward()
    seen = tokens.grad.abs().sum(dim=(0, 2, 3)) > 0  # type: ignore[union-attr]
    assert int(seen.sum()) == num_layers * (size - 1) + 1


@pytest.mark.parametrize("kind", [FrameStackingConfig, TemporalMixerConfig])
def test_windowed_cores_see_their_window_and_no_more(
    kind: type[FrameStackingConfig] | type[TemporalMixerConfig],
) -> None:
    core = kind(process_size=TOKENS, num_layers=2, window=4, mlp_size=16).build(WIDTH, NUM_INPUTS)
    assert reach(core.double(), ticks=9) == 3


def plain_block(block: CausalBlock, x: Tensor, ticks: Tensor, size: int) -> Tensor:
    """Compute the block query by query and head by head.

    x: (S, D), tokens of the ticks (S,); size: the window.
    """
    query, key, value = block.qkv(block.attention_norm(x)).chunk(3, dim=-1)
    head_size = x.shape[-1] // block.num_heads
    half = head_size // 2
    speed = torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=x.dtype)
    mixed = torch.zeros_like(x)
    for head in range(block.num_heads):
        part = slice(head * head_size, (head + 1) * head_size)
        for i, tick in enumerate(ticks):
            seen = (ticks <= tick) & (ticks > tick - size)
            # As complex numbers: a key is rotated backwards by its age.
            q = torch.complex(*query[i, part].chunk(2))
            k = torch.complex(*key[seen][:, part].chunk(2, dim=-1))
            age = (tick - ticks[seen])[:, None] * speed
            scores = (q * (k * torch.polar(torch.ones_like(age), -age)).conj()).sum(dim=-1).real
            weights = (scores / head_size**0.5).softmax(dim=0)
            mixed[i, part] = weights @ value[seen][:, part]
    x = x + block.out(mixed)
    return x + block.mlp(block.mlp_norm(x))


@torch.no_grad()
def test_the_causal_transformer_equals_a_plain_restatement() -> None:
    core, tokens = causal(num_layers=2, window=3), window(7)
    x = torch.cat([core.read(now) + core.slot for now in tokens.unbind(dim=1)], dim=1)[0]
    ticks = torch.arange(7).repeat_interleave(TOKENS)
    for block in core.blocks:
        assert isinstance(block, CausalBlock)
        x = plain_block(block, x, ticks, core.window)
    expected = core.norm(x).view(1, 7, TOKENS, WIDTH)
    torch.testing.assert_close(core(tokens)[0], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_cache_without_a_window_grows_and_sees_everything() -> None:
    core, tokens = causal(num_layers=2, window=3), window(9, batch=2)
    wide = causal(num_layers=2, window=50)
    wide.load_state_dict(core.state_dict())
    cache, outputs = core.empty_cache(2), []
    for tick in range(9):
        output, cache = core.extend(tokens[:, tick : tick + 1], cache)
        outputs.append(output)
        assert cache["keys"].shape == (2, 2, (tick + 1) * TOKENS, WIDTH)
    stepped = torch.cat(outputs, dim=1)
    torch.testing.assert_close(stepped, wide(tokens)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        stepped, core.extend(tokens, core.empty_cache(2))[0], rtol=0, atol=1e-12
    )


@torch.no_grad()
def test_late_in_an_episode_float32_ticks_are_as_exact_as_early_ones() -> None:
    core, tokens = causal(num_layers=1, window=4).float(), window(600).float()
    late, early = core(tokens)[0][:, -1], core(tokens[:, -4:])[0][:, -1]
    assert_same_but_rounding(late, early, operations=100)


@torch.no_grad()
def test_a_recurrent_state_keeps_its_size() -> None:
    core = RecurrentTransformerConfig(memory_size=4, process_size=TOKENS, num_heads=2).build(
        WIDTH, NUM_INPUTS
    )
    state = core.initial_state(1)
    for now in window(300).float().unbind(dim=1):
        _, state = core.step(now, state)
        assert state["memory"].norm(dim=-1).max() <= WIDTH**0.5 + 1e-4


def test_an_lstm_begins_by_keeping_what_it_has() -> None:
    core = LstmConfig(process_size=TOKENS).build(WIDTH, NUM_INPUTS)
    assert isinstance(core, LstmCore)
    for _, _, input_bias, _ in core.lstm.all_weights:
        assert (input_bias[WIDTH : 2 * WIDTH] == 1).all()
        assert (input_bias[:WIDTH] != 1).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            CausalTransformerConfig(num_heads=3),
            "the causal Transformer has 3 heads, which do not divide",
        ),
        (CausalTransformerConfig(num_heads=8), "8 heads have 1 channels each; give a num_heads"),
        (FrameStackingConfig(num_heads=3), "has 3 heads, which do not divide the width 8"),
        (RecurrentTransformerConfig(num_heads=3), "has 3 heads, which do not divide the width 8"),
    ],
)
def test_heads_that_do_not_fit_are_told(config: CoreConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config.build(WIDTH, NUM_INPUTS)
