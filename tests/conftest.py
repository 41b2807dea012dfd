"""What holds for all tests."""

from __future__ import annotations

import sys

import pytest


def _seed() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _same_numbers_for_the_fixtures_of_a_file() -> None:
    """See `_same_numbers_for_each_test`."""
    _seed()


@pytest.fixture(autouse=True)
def _same_numbers_for_each_test(_same_numbers_for_the_fixtures_of_a_file: None) -> None:
    """Let PyTorch draw the same numbers in every run.

    Otherwise they depend on what ran before in the same process, and with several processes that depends on
    time.
    """
    _seed()
