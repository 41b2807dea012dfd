"""How contenders are timed against each other."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.training.bench.common import BLOCK, DROPPED, interleaved, median_ms


def test_contenders_take_turns_in_short_blocks() -> None:
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, blocks=2)  # type: ignore[misc]
    assert "".join(order) == ("a" * BLOCK + "b" * BLOCK) * 2
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys(
        "ab", 2 * (BLOCK - DROPPED)
    )


def test_medians_are_in_milliseconds() -> None:
    assert median_ms(np.array([0.001, 0.002, 0.5])) == pytest.approx(2)
