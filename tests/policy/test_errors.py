"""Checks of values: what passes, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest

from ttm.policy import UserError
from ttm.policy.errors import (
    options,
    require_above_0,
    require_at_least,
    require_at_most,
    require_choice,
    require_portion,
    require_some,
    require_valid_fields,
)


@dataclass(frozen=True)
class Sizes:
    layers: int = 0
    width: int = 1
    rate: float = -1.0
    shared: bool = False
    kind: Literal["mean", "sum"] = "mean"
    name: str = ""


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: require_at_least(2, {"--window": 1}), "--window is 1; give 2 or more"),
        (lambda: require_at_least(0, {"--gap": float("nan")}), "--gap is nan; give 0 or more"),
        (lambda: require_above_0({"--minutes": 0}), "--minutes is 0; give a number above 0"),
        (lambda: require_at_most(95, {"--quality": 96}), "--quality is 96; give 95 or less"),
        (lambda: require_at_most(1, {"a": float("nan")}), "a is nan; give 1 or less"),
        (lambda: require_portion({"a": 0, "b": 1.5}), "b is 1.5; give a portion from 0 to 1"),
        (lambda: require_some({"--seeds": ()}), "--seeds is empty; give one value or more"),
        (lambda: require_choice("kind", "max", ("mean", "sum")), "'max'; give one of mean, sum"),
        (lambda: require_valid_fields(Sizes(layers=-1), {"layers": 0}), "layers is -1; give 0 or"),
        (lambda: require_valid_fields(Sizes(width=0), {}), "layers is 0; give 1 or more"),
        (
            lambda: require_valid_fields(Sizes(layers=1, kind="max"), {}),
            "kind is 'max'; give one of mean",
        ),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_value_and_the_rule(check: Callable[[], None], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check()


def test_values_that_are_left_out_or_within_the_rules_pass() -> None:
    require_at_least(2, {"a": None, "b": 2})
    require_above_0({"a": None, "b": 0.1})
    require_at_most(2, {"a": None, "b": 2})
    require_portion({"a": None, "b": 0, "c": 1})
    require_some({"a": None, "b": (0,)})
    require_choice("kind", "sum", ("mean", "sum"))
    require_valid_fields(Sizes(), {"layers": 0})


def test_options_have_the_names_of_the_command_line() -> None:
    @dataclass
    class Command:
        batch_size: int = 4

    assert options(Command(), "batch_size") == {"--batch-size": 4}
