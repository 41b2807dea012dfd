"""The targets of the recall loss: what was seen and is not seen now."""

from __future__ import annotations

import pytest
import torch

from ttm.training.losses import RecallTargets


@pytest.fixture
def codes() -> torch.Tensor:
    """Codes (ticks, C) of two episodes of five and three ticks, with small numbers."""
    return torch.randint(-4, 5, (8, 3), generator=torch.Generator().manual_seed(0)).float()


def by_hand(codes: torch.Tensor, first: int, tick: int) -> list[float]:
    """The difference of largest magnitude between codes (ticks, C) since `first` and that of `tick`."""
    found = []
    for dimension in range(codes.shape[1]):
        differences = [
            float(codes[s, dimension] - codes[tick, dimension]) for s in range(first, tick + 1)
        ]
        found.append(max(differences, key=abs))
    return found


def test_targets_are_the_largest_differences_with_their_sign(codes: torch.Tensor) -> None:
    targets = RecallTargets(codes, [5, 3])
    found = targets.at(torch.arange(5)[None])
    expected = [by_hand(codes, 0, tick) for tick in range(5)]
    # Where a rise and a fall are equally large, either sign is right.
    assert found[0].abs().tolist() == [[abs(v) for v in row] for row in expected]
    assert not found[0, 0].any()
    assert (found < 0).any()
    assert (found > 0).any()
    clear = torch.tensor([[0.0], [3.0], [1.0]])
    assert RecallTargets(clear, [3]).at(torch.arange(3)[None])[0, :, 0].tolist() == [0, -3, 2]


def test_the_past_begins_with_the_window_or_with_the_episode(codes: torch.Tensor) -> None:
    targets = RecallTargets(codes, [5, 3])
    window = torch.tensor([[2, 3, 4], [6, 7, 7]])
    fresh, carried = targets.at(window), targets.at(window, whole_past=True)
    for row, (fresh_start, episode_start) in enumerate(((2, 0), (6, 5))):
        for place, tick in enumerate(window[row].tolist()):
            expected = torch.tensor(by_hand(codes, fresh_start, tick))
            assert torch.equal(fresh[row, place].abs(), expected.abs())
            expected = torch.tensor(by_hand(codes, episode_start, tick))
            assert torch.equal(carried[row, place].abs(), expected.abs())
    assert not torch.equal(fresh, carried)
