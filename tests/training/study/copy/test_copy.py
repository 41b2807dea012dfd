"""Copying: the task as the paper poses it, and a memory that learns it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from ttm.training.sequence_model import SequenceModel, fit
from ttm.training.study.common import GO, NUM_DIGITS, copy_accuracy, copy_sequences
from ttm.training.study.seeds import TLB


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sequences_are_the_papers() -> None:
    symbols, digits = copy_sequences(50, 7, generator())
    assert symbols.shape == (50, 7 + 21)
    assert digits.shape == (50, 10)
    assert set(digits.unique().tolist()) == set(range(1, 9))
    assert torch.equal(symbols[:, :10], digits)
    assert (symbols[:, 10:17] == 0).all()
    assert (symbols[:, 17] == 9).all()
    assert (symbols[:, 18:] == 0).all()


def test_every_digit_is_asked_for_after_the_same_number_of_ticks() -> None:
    symbols, digits = copy_sequences(3, 5, generator())
    asked = symbols.shape[1] - 10
    for place in range(10):
        assert torch.equal(symbols[:, asked + place - (5 + NUM_DIGITS + 1)], digits[:, place])


def test_the_last_output_falls_into_a_partial_chunk() -> None:
    """Carrying digits over the end of a chunk is thus a part of the task."""
    symbols, _ = copy_sequences(2, 100, generator())
    core = TLB.build(16, 1)
    _, state = core(torch.randn(*symbols.shape, 1, 16))
    assert state["phase"].tolist() == [1, 1]


def test_accuracy_counts_digits_and_whole_sequences() -> None:
    symbols, digits = copy_sequences(4, 2, generator())
    said = digits.clone()
    said[0, 3] = said[0, 3] % 8 + 1
    said[2, :5] = said[2, :5] % 8 + 1

    class Says(SequenceModel):
        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            ahead = torch.zeros(2, symbols.shape[1] - 10, GO + 1)
            rows = [int((given[:10] == digits).all(dim=1).nonzero()) for given in symbols]
            return torch.cat(
                [ahead, torch.nn.functional.one_hot(said[rows], GO + 1).float()], dim=1
            )

    model = Says(TLB, GO + 1, GO + 1, 16)
    assert copy_accuracy(model, symbols, digits, batch_size=2) == (1 - 6 / 40, 0.5)


def test_a_bottleneck_learns_to_copy_over_chunks() -> None:
    """A small task, learned in seconds; only the latents carry digits over the end of a chunk."""
    torch.manual_seed(0)
    config = replace(TLB, num_layers=1, chunk_size=3, num_latents=2, mlp_size=32)
    model, (symbols, digits) = SequenceModel(config, 4, 4, 32), _short(200, generator(99))
    source = generator()
    batches = (_short(32, source) for _ in range(150))
    for _ in fit(model, batches, _short_loss, learning_rate=3e-3):
        pass
    right = model(symbols)[:, -2:].argmax(dim=2) == digits
    assert right.float().mean() > 0.95


def _short(count: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two digits of 1 to 3, five zeros."""
    digits = torch.randint(1, 4, (count, 2), generator=source)
    return torch.cat([digits, torch.zeros(count, 5, dtype=torch.int64)], dim=1), digits


def _short_loss(model: SequenceModel, symbols: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(symbols)[:, -2:].flatten(0, 1), digits.flatten())


def test_the_loss_is_of_the_last_ten_outputs() -> None:
    symbols, digits = copy_sequences(3, 4, generator())
    scores = torch.zeros(*symbols.shape, GO + 1)
    scores[:, -NUM_DIGITS:] = 100.0 * functional.one_hot(digits, GO + 1)

    class Right(nn.Module):
        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            return scores

    assert SequenceModel.loss(Right(), symbols, digits) < 1e-6  # type: ignore[arg-type]
