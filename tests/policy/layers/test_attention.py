"""Attention that is folded while it trains: values and gradients are those of keys and values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor, nn

from ttm.policy import attention
from ttm.policy.attention import AttentionBlock, SelfAttention, folding_gains

WIDTH, HEADS, ASKING, TOKENS = 12, 2, 3, 9
CASES: dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor, Tensor], Tensor]]] = {
    "self": (SelfAttention(WIDTH, HEADS), lambda module, x, context: module(context, ASKING)),
    "block": (
        AttentionBlock(WIDTH, HEADS, 16),
        lambda module, x, context: module.attend(x, context),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_folded_attention_equals_attention_to_keys_and_values(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, run = CASES[case]
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, context = torch.randn(4, ASKING, WIDTH), torch.randn(4, TOKENS, WIDTH)
    gradient, results = torch.randn(4, ASKING, WIDTH), []
    assert folding_gains(module.train(), x, TOKENS, HEADS)
    for _ in range(2):
        given = [x.clone().requires_grad_(), context.clone().requires_grad_()]
        out = run(module, *given)
        leaves = [*given, *module.parameters()]
        slopes = torch.autograd.grad(out, leaves, gradient, allow_unused=True)
        results.append([out, *(slope for slope in slopes if slope is not None)])
        monkeypatch.setattr(attention, "folding_gains", lambda *_: False)
        monkeypatch.setattr(attention, "folded_attention", None)
    for mine, expected in zip(*results, strict=True):
        assert_same_but_rounding(mine, expected)


def test_only_training_in_full_precision_folds() -> None:
    module, x = SelfAttention(WIDTH, HEADS).eval(), torch.zeros(4, ASKING, WIDTH)
    assert not folding_gains(module, x, TOKENS, HEADS)
    assert not folding_gains(module.train(), torch.zeros(4, TOKENS, WIDTH), TOKENS, HEADS)
    with torch.no_grad():
        assert not folding_gains(module, x, TOKENS, HEADS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not folding_gains(module, x, TOKENS, HEADS)
