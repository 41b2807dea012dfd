"""Erase-and-add: its formula and its known flaw. Concatenation: a bounded history."""

from __future__ import annotations

import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy.cores.ttm_variants import ConcatenationWrite, EraseAddWrite

WIDTH, M, R, N = 8, 5, 3, 4


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_erase_add_follows_its_formula() -> None:
    write = EraseAddWrite(WIDTH, R).double()
    memory, outputs = normal(2, M, WIDTH), normal(2, R, WIDTH)
    weights, erase, add = write.weights(memory), write.erase(outputs), write.add(outputs)
    assert weights.shape == (2, M, 8)
    assert erase.shape == add.shape == (2, 8, WIDTH)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, 8, dtype=torch.float64))
    expected = torch.empty_like(memory)
    for b in range(2):
        for i in range(M):
            kept, added = (
                torch.ones(WIDTH, dtype=torch.float64),
                torch.zeros(WIDTH, dtype=torch.float64),
            )
            for t in range(8):
                kept = kept * (1 - weights[b, i, t] * erase[b, t])
                added = added + (1 - weights[b, i, t] * add[b, t]) / 8
            expected[b, i] = memory[b, i] * kept + added
    torch.testing.assert_close(write(memory, normal(2, N, WIDTH), outputs), expected)


def test_erase_add_keeps_slots_identical_from_zero_memory() -> None:
    """This is why a configuration of it with a memory of zeros is refused."""
    write, memory = EraseAddWrite(WIDTH, R).double(), torch.zeros(1, M, WIDTH, dtype=torch.float64)
    for _ in range(5):
        memory = write(memory, normal(1, N, WIDTH), normal(1, R, WIDTH))
        assert memory.any()
        assert_same_but_rounding(memory, memory[:, :1].expand_as(memory))


def test_a_start_that_differs_breaks_the_tie() -> None:
    write, start = EraseAddWrite(WIDTH, R).double(), 0.02 * normal(1, M, WIDTH)
    start.requires_grad_()
    memory = start
    for _ in range(5):
        memory = write(memory, normal(1, N, WIDTH), normal(1, R, WIDTH))
    spread = (memory - memory.mean(dim=1, keepdim=True)).abs().amax(dim=2)
    assert (spread > 1e-3).all()
    memory.square().sum().backward()
    assert start.grad is not None
    assert start.grad.abs().sum() > 0


def test_concatenation_keeps_the_newest() -> None:
    write, memory = ConcatenationWrite(), torch.zeros(2, M, WIDTH)
    history = memory
    for _ in range(4):
        outputs = torch.randn(2, R, WIDTH)
        memory = write(memory, torch.randn(2, N, WIDTH), outputs)
        history = torch.cat([history, outputs], dim=1)
        assert torch.equal(memory, history[:, -M:])


def test_concatenation_of_more_than_fits() -> None:
    outputs = torch.randn(2, M + 2, WIDTH)
    assert torch.equal(
        ConcatenationWrite()(torch.randn(2, M, WIDTH), outputs, outputs), outputs[:, 2:]
    )
