"""The arguments of the launch files, and the parameter files that are made of them.

Arguments that are no parameters of a node are declared here, as the nodes' parameters are. This module
imports no ROS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm_policy.parameters import (
    DeclaredParameter,
    NodeParameters,
    file_path,
    param,
    parameters_of,
    require_known,
)

TOPICS: Mapping[str, str] = {
    "cmd_vel": "cmd_vel",
    "servo": "servo_node/delta_twist_cmds",
    "gripper": "gripper_controller/joint_trajectory",
    "joint_states": "joint_states",
    "odom": "odom",
}
"""Launch argument -> the topic of the contract that it remaps."""


def _topic(name: str) -> Any:
    return param(TOPICS[name], f"The topic to use in place of {TOPICS[name]}, for all nodes.")


@dataclass(frozen=True)
class LaunchParameters(NodeParameters):
    """The arguments of every launch file."""

    namespace: str = param(
        "",
        "Namespace of the nodes and their topics, such as left_robot. A simulated robot publishes its "
        "clock and transforms there, too.",
    )
    params_file: str = file_path("", "YAML file of parameters. Given arguments overrule it.")
    cmd_vel: str = _topic("cmd_vel")
    servo: str = _topic("servo")
    gripper: str = _topic("gripper")
    joint_states: str = _topic("joint_states")
    odom: str = _topic("odom")


@dataclass(frozen=True)
class SimulatedLaunchParameters(LaunchParameters):
    """The arguments of launch files that can start the simulated robot too."""

    sim: bool = param(False, "Start the simulated robot too.")
    use_sim_time: bool = param(
        False, "Take the time from /clock. By default as params_file, or sim."
    )


@dataclass(frozen=True)
class RobotLaunchParameters(SimulatedLaunchParameters):
    """The arguments of `robot.launch.py` beside those of the nodes."""

    respawn: bool = param(
        False,
        "Start the policy again after a crash, with the memory that it had; not after wrong parameters "
        "and orderly ends.",
    )


@dataclass(frozen=True)
class RecordLaunchParameters(SimulatedLaunchParameters):
    """The arguments of `record.launch.py` beside those of the nodes."""

    web: bool = param(
        False,
        "Serve a web page by which a person drives the robot and records. By default as sim, unless "
        "teleop is true and there is no checkpoint.",
    )
    teleop: bool = param(False, "Start teleop_node too: a person drives with a gamepad.")
    checkpoint: str = file_path(
        "",
        "With sim:=true, let this policy drive, and take over from it by the page or the gamepad. "
        "`shipped` is that of the project. Each episode begins its scene again.",
    )


# The values of arguments, which are texts. Mistakes are found before anything starts.

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

Given = Mapping[type[NodeParameters], Mapping[str, Any]]
"""The values of the arguments that were given, by the class that declares them."""


def read_value(parameter: DeclaredParameter, text: str) -> Any:
    """Return the value of an argument, a path without ~. Raises `UserError` for a wrong type or range."""
    argument = f"argument {parameter.name}"
    try:
        value = _BOOLS[text.lower()] if parameter.type is bool else parameter.type(text)
    except (KeyError, ValueError):
        raise UserError(f"{argument} is '{text}'; give {_KINDS[parameter.type]}") from None
    parameter.check(value, label=argument)
    return os.path.expanduser(str(value)) if parameter.about.is_path else value


def read_values(kinds: Sequence[type[NodeParameters]], given: Mapping[str, str]) -> Given:
    """Return the values given for each of `kinds`; one that several of them have counts for all."""
    return {
        kind: {
            parameter.name: read_value(parameter, given[parameter.name])
            for parameter in parameters_of(kind)
            if parameter.name in given
        }
        for kind in kinds
    }


def check_name(argument: str, text: str) -> str:
    """Return the name of a topic or namespace. Raises `UserError` if ROS does not accept it."""
    if not re.fullmatch(r"(/|~/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", text, re.ASCII):
        raise UserError(f"argument {argument} is '{text}'; give names of letters, digits and _")
    return text


# Parameter files for the nodes, in an order of precedence that holds for every file of a user.

_PARAMETERS = "ros__parameters"


def write_parameters(path: Path, values: Mapping[str, Any], *, node: str = "") -> Path:
    """Write a parameter file for a node: it overrules all files before it.

    Without the node's name, every later file overrules it. ROS applies sections in the order in which their
    names first appear in all files; these have names of their own, so that the later file wins.
    """
    section = {f"/**/{node or '*'}": {_PARAMETERS: dict(values)}}
    text = yaml.safe_dump(section, allow_unicode=True, width=10_000)
    path.write_text(text, encoding="utf-8")
    return path


def require_sections(path: str, nodes: Sequence[str]) -> None:
    """Raise `UserError` unless the parameter file says something about one of the nodes of a launch.

    nodes: their full names, such as /left/policy_node. ROS ignores sections that have the name of another
    node, and the limits in them. Those of strangers may stand beside ours, those with a typing error not.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"params_file {path} cannot be read ({reason})") from error
    names = list(_sections(content, ""))
    own = [node.rpartition("/")[2] for node in nodes]
    if not any(_matches(name, node) for name in names for node in nodes):
        found = ", ".join(names) or "no section with ros__parameters"
        remedy = " or ".join(f"/**/{name}" for name in own)
        lacks = f"has nothing for {' or '.join(nodes)}, but {found}"
        raise UserError(f"params_file {path} {lacks}; name the section {remedy}")
    meant = [name.rpartition("/")[2] for name in names]
    # joy_teleop_node is another node than teleop_node
    require_known("node, named in params_file,", meant, own, cutoff=0.88)


def _sections(content: Any, prefix: str) -> Iterator[str]:
    """Yield the absolute names of all sections. Namespaces may be written as nested sections."""
    if not isinstance(content, dict):
        return
    for name, inner in content.items():
        if name == _PARAMETERS:
            yield prefix or "/"
        else:
            yield from _sections(inner, f"{prefix}/{str(name).lstrip('/')}")


def _matches(section: str, node: str) -> bool:
    """Return whether a section's name, in which * and ** stand for parts of names, means the node."""
    pattern = re.escape(section).replace(r"/\*\*", "(/[^/]+)*").replace(r"\*", "[^/]+")
    return re.fullmatch(pattern, node) is not None
