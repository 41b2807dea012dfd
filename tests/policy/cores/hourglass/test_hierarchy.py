"""The notation of hierarchies, its errors, and the linear cost model."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ttm.policy.cores.hourglass import Hierarchy, HourglassConfig, Stage, parse_hierarchy
from ttm.policy.errors import UserError

COSTS = {
    "2@1 4@4 2@1": Fraction(7),
    "2@1 8@4 2@1": Fraction(8),
    "3@1 8@4 3@1": Fraction(10),
    "4@1 8@4 4@1": Fraction(12),
    "2@1 1@3 2@1": Fraction(19, 3),
    "2@1 4@3 2@1": Fraction(22, 3),
    "2@1 8@3 2@1": Fraction(26, 3),
    "2@1 16@3 2@1": Fraction(34, 3),
    "2@1 1@2 4@4 1@2 2@1": Fraction(9),
    "5@1 8@2 5@1": Fraction(16),
    "5@1 24@3 5@1": Fraction(20),
    "3@1 24@3 3@1": Fraction(16),
}
"""Hierarchy -> cost in layers at full length, with attention resampling."""


@pytest.mark.parametrize("text", COSTS)
def test_the_linear_cost_model(text: str) -> None:
    assert parse_hierarchy(text).linear_cost == COSTS[text]


def test_hierarchies_are_read_from_the_outside_in() -> None:
    nested = parse_hierarchy("2@1 1@2 4@6 1@2 2@1")
    assert nested == Hierarchy((Stage(2, 1), Stage(1, 2), Stage(4, 6)))
    assert nested.factors == (2, 3)
    assert nested.period == 6
    assert parse_hierarchy("12@1") == Hierarchy((Stage(12, 1),))


def test_without_vanilla_layers_scale_1_is_still_the_outermost() -> None:
    assert (
        parse_hierarchy("4@4")
        == parse_hierarchy("0@1 4@4 0@1")
        == Hierarchy((Stage(0, 1), Stage(4, 4)))
    )
    assert parse_hierarchy("1@2 4@4 1@2") == parse_hierarchy("0@1 1@2 4@4 1@2 0@1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hierarchy '' is empty"),
        ("2@1 four@4 2@1", "has the entry 'four@4'; give each as layers@scale"),
        ("2@1 4@4,2@1", "has the entry '4@4,2@1'"),
        ("2@1 4@4", "does not return by the way that it came"),
        ("2@1 4@4 1@1", "does not return by the way that it came"),
        ("2@1 4@4 4@4 2@1", "has one innermost entry"),
        ("2@1 1@4 4@2 1@4 2@1", "goes from scale 4 to 2; give scales that are larger multiples"),
        ("2@1 1@2 4@3 1@2 2@1", "goes from scale 2 to 3"),
        ("2@1 1@1 2@1", "goes from scale 1 to 1"),
        ("1@0", "goes from scale 1 to 0"),
        ("2@1 0@4 2@1", "has no layer at its innermost scale"),
    ],
)
def test_faults_of_a_hierarchy_are_told(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HourglassConfig(hierarchy=text)
