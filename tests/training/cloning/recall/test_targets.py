"""The targets of the recall loss: what was seen within a stand-still and is not seen now."""

from __future__ import annotations

import pytest
import torch

from ttm.training.losses import RecallTargets

LENGTHS = [5, 3]
STANDS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
"""The first episode moves after its third tick, the second one before its last."""


@pytest.fixture
def codes() -> torch.Tensor:
    """Codes (ticks, C) of two episodes of five and three ticks, with small numbers."""
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def by_hand(codes: torch.Tensor, first: int, tick: int) -> torch.Tensor:
    """The difference to `tick` of the farthest code of the same stand-still since `first`."""
    same = [s for s in range(first, tick + 1) if STANDS[s] == STANDS[tick]]
    if len(same) == 1:
        return torch.full((codes.shape[1],), torch.nan)
    differences = [codes[s] - codes[tick] for s in same]
    return max(differences, key=lambda each: float(each.norm()))


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_the_past_begins_with_stand_still_window_and_episode(codes: torch.Tensor) -> None:
    targets = RecallTargets(codes, LENGTHS, STANDS)
    window = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 4]])
    for whole_past in (False, True):
        found = targets.at(window, whole_past=whole_past)
        for row in range(2):
            first = 0 if whole_past else int(window[row, 0])
            for place, tick in enumerate(window[row, :4].tolist()):
                assert_equal(found[row, place], by_hand(codes, first, tick))
    assert_equal(
        targets.at(torch.tensor([[5, 6, 7]]))[0, :, 0].isnan(), torch.tensor([True, False, True])
    )


def test_what_is_still_seen_is_no_target() -> None:
    codes = torch.tensor([[0.0], [3.0], [3.0]])
    found = RecallTargets(codes, [3], torch.zeros(3)).at(torch.arange(3)[None])[0, :, 0]
    assert_equal(found, torch.tensor([torch.nan, -3.0, -3.0]))


def test_a_long_past_is_searched_in_parts(
    codes: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = torch.arange(5)[None]
    whole = RecallTargets(codes, LENGTHS, STANDS).at(window)
    monkeypatch.setattr("ttm.training.losses.ROWS_AT_ONCE", 2)
    assert_equal(RecallTargets(codes, LENGTHS, STANDS).at(window), whole)
