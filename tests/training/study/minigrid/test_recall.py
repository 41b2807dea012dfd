"""The loss that asks for what was seen and is not seen now."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("minigrid")

from ttm.training.study.memory import RecallHead, seen_now

KINDS, WIDTH = 4, 3


def head_that_says(logits: list[float]) -> RecallHead:
    head = RecallHead(WIDTH, KINDS)
    with torch.no_grad():
        head.layers[2].weight.zero_()
        head.layers[2].bias.copy_(torch.tensor(logits))
    return head


def test_only_kinds_out_of_view_are_asked_and_only_until_the_end() -> None:
    tiles = torch.tensor([[[1, 1, 2], [1, 1, 1], [3, 3, 3]]])  # (1, 3, tiles)
    real = torch.tensor([[True, True, False]])
    outputs = torch.zeros(1, 3, WIDTH)
    # Asked are kinds 0 and 3 at the first tick, not seen; at the second 0 and 3 again, and 2, seen.
    assert seen_now(tiles, KINDS).sum(dim=2).tolist() == [[2, 1, 1]]
    even = head_that_says([0, 0, 0, 0]).loss(outputs, tiles, real)
    assert even.item() == pytest.approx(math.log(2))
    sure = head_that_says([-50, 0, 50, -50]).loss(outputs, tiles, real)
    assert sure.item() == pytest.approx(0, abs=1e-6)
    wrong = head_that_says([-50, 0, -50, -50]).loss(outputs, tiles, real)
    assert wrong.item() == pytest.approx(50 / 5)


def test_it_can_be_told_from_a_memory_alone() -> None:
    """Two episodes that differ at their first tick only: outputs that are equal cannot tell them."""
    tiles = torch.tensor([[[1, 1], [0, 0]], [[2, 2], [0, 0]]])
    real = torch.tensor([[False, True], [False, True]])
    same, told = torch.zeros(2, 2, WIDTH), torch.zeros(2, 2, WIDTH)
    told[0, :, 0], told[1, :, 1] = 1.0, 1.0
    head, losses = RecallHead(WIDTH, KINDS), {}
    for name, outputs in (("same", same), ("told", told)):
        optimizer = torch.optim.Adam(head.parameters(), 0.05)
        for _ in range(100):
            loss = head.loss(outputs, tiles, real)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["same"] == pytest.approx(2 * math.log(2) / 3, abs=0.02)
    assert losses["told"] < 0.05
