"""How a node's parameters are declared: a dataclass whose fields carry help, unit and range.

This module imports no ROS, so that programs can read the parameters where ROS is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ttm.policy.checks import require_above_0, require_at_least, require_at_most, require_choice


@dataclass(frozen=True)
class Parameter:
    """The description of a parameter, beside its name, type and default.

    The first sentence of `help` stands alone in tables.
    """

    help: str
    unit: str = ""
    minimum: float | None = None
    """The smallest value that is accepted."""
    maximum: float | None = None
    """The largest value that is accepted, beside `minimum` or `positive`."""
    positive: bool = False
    """Whether only values above 0 are accepted."""
    is_path: bool = False
    """Whether the value is the path of a file or folder."""
    is_limit: bool = False
    """Whether this parameter limits motion. Tables show the limits last."""
    live: bool = False
    """Whether a running node takes a new value, from its next tick on."""


@dataclass(frozen=True)
class DeclaredParameter:
    """One parameter of a node, as its dataclass declares it."""

    name: str
    type: type[Any]
    """bool, int, float or str."""
    default: Any
    choices: tuple[str, ...]
    """The values that are accepted, or () if there is no such list."""
    about: Parameter

    @property
    def default_text(self) -> str:
        """The default as YAML and launch files write it."""
        return str(self.default).lower() if self.type is bool else str(self.default)

    @property
    def range_text(self) -> str:
        """The accepted values in words, such as `> 0`; empty if all values are accepted."""
        if self.choices:
            return ", ".join(self.choices)
        if self.about.positive:
            return "> 0" if self.about.maximum is None else f"> 0, <= {self.about.maximum:g}"
        if self.about.maximum is not None:
            return f"{self.about.minimum:g} to {self.about.maximum:g}"
        return "" if self.about.minimum is None else f">= {self.about.minimum:g}"

    def check(self, value: Any, label: str = "") -> None:
        """Raise `UserError` if `value` is out of range or NaN.

        label: the name in the error message.
        """
        label = label or self.name
        if self.choices:
            require_choice(label, value, self.choices)
        if self.about.positive:
            require_above_0({label: value})
        if self.about.minimum is not None:
            require_at_least(self.about.minimum, {label: value})
        if self.about.maximum is not None:
            require_at_most(self.about.maximum, {label: value})


class NodeParameters:
    """The base of the dataclasses, one for each node.

    Construction raises `UserError` for values that are out of range.
    """

    def __post_init__(self) -> None:
        for parameter in parameters_of(type(self)):
            parameter.check(getattr(self, parameter.name))


def parameters_of(node_parameters: type[NodeParameters]) -> tuple[DeclaredParameter, ...]:
    """Return the parameters that a dataclass declares, in its order, with the limits last."""
    hashable: Any = node_parameters
    hints, declared = _hints(hashable), []
    for item in fields(node_parameters):  # type: ignore[arg-type]
        kind, about = get_args(hints[item.name])
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        assert item.default is not MISSING
        declared.append(
            DeclaredParameter(item.name, str if choices else kind, item.default, choices, about)
        )
    return tuple(sorted(declared, key=lambda parameter: parameter.about.is_limit))


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields. To evaluate them takes 3 ms, at each change of one."""
    return get_type_hints(kind, include_extras=True)


def markdown_table(node_parameters: type[NodeParameters]) -> str:
    """Return the table of `ros2_ws/docs/parameters.md` with a row for each parameter."""
    rows = ["| parameter | default | unit | range | meaning |", "|---|---|---|---|---|"]
    for parameter in parameters_of(node_parameters):
        summary = parameter.about.help.split(". ")[0].rstrip(".")
        cells = (f"`{parameter.name}`", parameter.default_text, parameter.about.unit)
        rows.append(f"| {' | '.join((*cells, parameter.range_text, summary))} |")
    return "\n".join(rows)
