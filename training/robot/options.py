"""Converts between the parameters of the ROS nodes and the options of `ttm robot` and `ttm record`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import arg

from ttm.policy.errors import UserError
from ttm_policy.parameters import (
    DeclaredParameter,
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
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
    },
    RecorderParameters: {
        "autostart": "the command starts the node in order to run it",
        "keys": "the command takes keys wherever there is a terminal",
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
    sim_parameters: type[NodeParameters] | None = None,
) -> list[tuple[str, Any, Field[Any]]]:
    """Return one field for `dataclasses.make_dataclass` for each parameter that has an option.

    A parameter that both nodes have becomes one option. sim_parameters: of a node that only --sim starts.
    """
    policy = _with_option(node_parameters)
    sim = {} if sim_parameters is None else _with_option(sim_parameters)
    options = []
    for name in {**policy, **sim}:
        parameter = policy.get(name) or sim[name]
        about = arg(help=_help(policy.get(name), sim.get(name)))
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


def _help(policy: DeclaredParameter | None, sim: DeclaredParameter | None) -> str:
    """Return the help text of an option, with both nodes' texts if they differ."""
    texts = [_sentence(policy)] if policy is not None else []
    if sim is not None and (policy is None or sim.about.help != policy.about.help):
        texts.append(f"With --sim: {_sentence(sim)}")
    return " ".join(texts)


def _sentence(parameter: DeclaredParameter) -> str:
    """Return the help text with the unit, which the options' names do not tell."""
    unit = parameter.about.unit
    return f"{parameter.about.help} In {unit}." if unit else parameter.about.help
