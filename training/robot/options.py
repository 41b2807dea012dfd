"""Converts between the parameters of the ROS nodes and the options of `ttm robot` and `ttm record`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import Field, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import arg

from ttm.policy.errors import UserError
from ttm_policy.parameters import (
    DeclaredParameter,
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
    parameters_of,
)

Parameters = TypeVar("Parameters", bound=NodeParameters)

WITHOUT_OPTION: Mapping[type[NodeParameters], Mapping[str, str]] = {
    PolicyParameters: {
        "autostart": "the command starts the node in order to run it",
        "lockstep": "--sim and --free-running decide it",
    },
    SimParameters: {
        "driver": "with ttm robot the policy drives, with ttm record a person",
        "lockstep": "--free-running decides it",
        "policy_node": "the command starts both nodes and knows their names",
        "recorder": "ttm record starts both nodes and knows their names",
    },
    RecorderParameters: {
        "autostart": "the command starts the node in order to run it",
        "keys": "the command takes keys wherever there is a terminal",
        "simulator": "--sim decides it",
    },
    TeleopParameters: {
        "source": "--teleop names it",
        "recorder": "the command starts both nodes and knows their names",
    },
    WebParameters: {
        "folder": "--out of the recorder is the folder",
        "recorder": "the command starts both nodes and knows their names",
        "simulator": "--sim decides it",
    },
}
"""The parameters that no option is made for, and why."""

RENAMED = {"first_seed": "seed", "folder": "out"}
"""Parameter -> option, where the names differ."""


def option_of(parameter: str) -> str:
    """Return the name of the option (with underscores) that sets a parameter."""
    return RENAMED.get(parameter, parameter)


def parameter_options(
    node_parameters: type[NodeParameters],
    others: Mapping[str, type[NodeParameters]] = MappingProxyType({}),
) -> list[tuple[str, Any, Field[Any]]]:
    """Return one field for `dataclasses.make_dataclass` for each parameter that has an option.

    A parameter that several nodes have becomes one option. others: the parameters of nodes that only an
    option such as --sim starts, by that option.
    """
    nodes = {"": _with_option(node_parameters)}
    nodes |= {flag: _with_option(kind) for flag, kind in others.items()}
    options = []
    for name in dict.fromkeys(name for parameters in nodes.values() for name in parameters):
        found = {flag: parameters[name] for flag, parameters in nodes.items() if name in parameters}
        parameter = next(iter(found.values()))
        about = arg(help=_help(found))
        options.append(
            (name, Annotated[_type(parameter), about], field(default=_default(parameter)))
        )
    return options


def check_options(command: object, *kinds: type[NodeParameters]) -> None:
    """Raise `UserError` that names the first option of `command` whose value is out of range.

    kinds: the parameters that it has options for.
    """
    for node_parameters in kinds:
        for name, parameter in _with_option(node_parameters).items():
            parameter.check(_value(command, name), label=f"--{name.replace('_', '-')}")


def require_started(
    command: object,
    started: Collection[type[NodeParameters]],
    others: Mapping[type[NodeParameters], str],
) -> None:
    """Raise `UserError` if an option of `command` that no started node has is not at its default.

    started: the parameters of the nodes that are started. others: those of all that need not be -> their
    node, and what starts it.
    """
    known = {name for kind in started for name in _with_option(kind)}
    for kind, remedy in others.items():
        for name, parameter in _with_option(kind).items():
            if name not in known and _value(command, name) != parameter.default:
                raise UserError(f"--{name.replace('_', '-')} is one of {remedy}")


def require_contract(path: Path | None) -> None:
    """Raise `UserError` if there is no file at the path of a contract. None stands for the shipped one."""
    if path is not None and not path.is_file():
        raise UserError(f"no contract at {path}; give the path of a YAML file")


def read_options(command: object, node_parameters: type[Parameters], **others: Any) -> Parameters:
    """Return the parameters of a node as the options of `command` set them.

    others: the values of parameters that have no option.
    """
    values = {
        parameter.name: _value(command, name)
        for name, parameter in _with_option(node_parameters).items()
    }
    return node_parameters(**values, **others)


def _with_option(node_parameters: type[NodeParameters]) -> dict[str, DeclaredParameter]:
    """Return the parameters that have an option, by the name of the option."""
    return {
        option_of(parameter.name): parameter
        for parameter in parameters_of(node_parameters)
        if parameter.name not in WITHOUT_OPTION[node_parameters]
    }


def _value(command: object, option: str) -> Any:
    """Return an option's value as a node takes it: "" for None, and text for paths."""
    value = getattr(command, option)
    if value is None:
        return ""
    return str(value) if isinstance(value, Path) else value


def _type(parameter: DeclaredParameter) -> Any:
    if parameter.choices:
        return Literal[parameter.choices]
    kind: Any = Path if parameter.about.is_path else parameter.type
    return kind | None if parameter.default == "" else kind


def _default(parameter: DeclaredParameter) -> Any:
    if parameter.default == "":
        return None
    return Path(parameter.default) if parameter.about.is_path else parameter.default


def _help(found: Mapping[str, DeclaredParameter]) -> str:
    """Return the help text of an option, with all nodes' texts that differ.

    found: the parameter of each node that has it, by the option that starts the node.
    """
    texts: dict[str, str] = {}
    for flag, parameter in found.items():
        if parameter.about.help not in texts:
            sentence = _sentence(parameter)
            texts[parameter.about.help] = f"With {flag}: {sentence}" if flag else sentence
    return " ".join(texts.values())


def _sentence(parameter: DeclaredParameter) -> str:
    """Return the help text with the unit, which the options' names do not tell."""
    unit = parameter.about.unit
    return f"{parameter.about.help} In {unit}." if unit else parameter.about.help
