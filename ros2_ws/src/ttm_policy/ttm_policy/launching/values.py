"""Reads the values of launch arguments, which are texts, and finds mistakes before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ttm.policy.errors import UserError
from ttm_policy.parameters import DeclaredParameter, NodeParameters, parameters_of

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def read_value(parameter: DeclaredParameter, text: str) -> Any:
    """Return the value of an argument. Raises `UserError` if it has a wrong type or is out of range.

    In paths, `~` stands for the home folder.
    """
    try:
        value = _BOOLS[text.lower()] if parameter.type is bool else parameter.type(text)
    except (KeyError, ValueError):
        raise UserError(
            f"argument {parameter.name} is '{text}'; give {_KINDS[parameter.type]}"
        ) from None
    parameter.check(value, label=f"argument {parameter.name}")
    return os.path.expanduser(str(value)) if parameter.about.is_path else value


def read_values(
    kinds: Sequence[type[NodeParameters]], given: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the values that were given for each of `kinds`, by the names of the classes.

    An argument that several of them have counts for all of them.
    """
    return {
        kind.__name__: {
            parameter.name: read_value(parameter, given[parameter.name])
            for parameter in parameters_of(kind)
            if parameter.name in given
        }
        for kind in kinds
    }


def check_name(argument: str, text: str) -> str:
    """Return the name of a topic or namespace. Raises `UserError` if ROS does not accept it."""
    if not re.fullmatch(r"(/|~/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", text, re.ASCII):
        raise UserError(
            f"argument {argument} is '{text}'; give names of letters, digits and _ with / between "
            "them, such as left/cmd_vel"
        )
    return text
