"""The linear cost model of Hourglass, and the count of one element of a long sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy.cores.hourglass import HourglassConfig
from ttm.training.bench.flops_counts import element_by_hand, measure_hierarchies


def test_every_hierarchy_of_the_paper_has_its_cost() -> None:
    rows = measure_hierarchies(HourglassConfig(), width=64)
    assert {row.hierarchy: row.model for row in rows} == pytest.approx(
        {
            "2@1 4@4 2@1": 7,
            "2@1 8@4 2@1": 8,
            "3@1 8@4 3@1": 10,
            "4@1 8@4 4@1": 12,
            "2@1 1@3 2@1": 19 / 3,
            "2@1 4@3 2@1": 22 / 3,
            "2@1 8@3 2@1": 26 / 3,
            "2@1 16@3 2@1": 34 / 3,
            "2@1 1@2 4@4 1@2 2@1": 9,
            "5@1 8@2 5@1": 16,
            "5@1 24@3 5@1": 20,
            "3@1 24@3 3@1": 16,
        }
    )
    assert all(row.element < row.tick for row in rows)
    # A layer of the model costs 12 D^2 if the MLP is 4 D wide. The linear map adds k D^2, and
    # attention adds 2 W D to each layer.
    few = measure_hierarchies(HourglassConfig(mlp_size=256, window=2), width=64)[0]
    layer = 12 * 64**2 + 4 * 64
    assert few.element == pytest.approx(4 + 1 + 1 + 1 / 4 + 4 * 64**2 / layer)


@pytest.mark.parametrize("hierarchy", ["2@1 4@4 2@1", "1@1 1@2 2@6 1@2 1@1", "3@1"])
def test_elements_of_a_long_sequence_are_counted_by_hand_as_they_run(hierarchy: str) -> None:
    """Attention itself is left out: it runs under a mask over more elements than it sees."""
    width, ticks = 32, 24

    def by_hand(window: int) -> Fraction:
        return element_by_hand(replace(config, window=window), width)

    config = HourglassConfig(
        hierarchy=hierarchy,
        process_size=1,
        num_heads=2,
        mlp_size=48,
        bottleneck=5,
        position="rotary",
    )
    with torch.device("meta"), torch.no_grad():
        core, tokens = config.build(width, 1), torch.zeros(1, ticks, 1, width)
        whole = linear_layers(lambda: core(tokens)) - linear_layers(lambda: core.read_all(tokens))
    without_attention = 2 * by_hand(2) - by_hand(
        4
    )  # the cost grows evenly with what attention sees
    assert whole == ticks * without_attention


def linear_layers(call: Callable[[], object]) -> int:
    """Count the multiply-adds of the matrix products with weights."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for operation, flops in counts.items() if "bmm" not in str(operation)) // 2
