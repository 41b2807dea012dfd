"""Texts of launch arguments become values, or errors that say what to write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm_policy.launching import check_name, read_value, read_values
from ttm_policy.parameters import PolicyParameters, SimParameters, parameters_of

POLICY = {parameter.name: parameter for parameter in parameters_of(PolicyParameters)}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("autostart", "True", True),
        ("autostart", "0", False),
        ("threads", "2", 2),
        ("max_age_s", "1", 1.0),
        ("max_forward_accel_m_s2", "inf", math.inf),
        ("instruction", "yes", "yes"),
        ("instruction", "007", "007"),
        ("checkpoint", "~/policy.safetensors", str(Path.home() / "policy.safetensors")),
    ],
)
def test_a_text_becomes_a_value_of_the_declared_type(name: str, text: str, value: Any) -> None:
    read = read_value(POLICY[name], text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["", "1.5", "two"])
def test_a_text_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"argument threads is '{text}'; give a whole number"):
        read_value(POLICY["threads"], text)


def test_a_shared_argument_counts_for_both_nodes() -> None:
    given = {"lockstep": "true", "episodes": "3"}
    values = read_values((PolicyParameters, SimParameters), given)
    assert values == {
        PolicyParameters: {"lockstep": True},
        SimParameters: {"lockstep": True, "episodes": 3},
    }


@pytest.mark.parametrize("name", ["left", "/left", "lab/left", "~/cmd_vel", "a_1/b2"])
def test_names_of_ros_are_accepted(name: str) -> None:
    assert check_name("namespace", name) == name


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a//b", "a/", "a b", "a/1", "ä"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="give names of letters, digits and _"):
        check_name("namespace", name)
