"""The arguments of a launch file and the action that reads them. Only launch files import this module.

It needs ROS's `launch`, which comes with a ROS 2 install and not with the wheels of `rclpy`.
"""

# ruff: noqa: I001  (the folder `launch` makes ruff take ROS's launch for a module of ours)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.logging import get_logger

from ttm_policy.parameter_sets.declared_parameter import (
    DeclaredParameter,
    NodeParameters,
    parameters_of,
)
from ttm_policy.parameter_sets.known_names import require_known
from ttm_policy.launching.values import read_values

Start = Callable[[Mapping[str, Mapping[str, Any]]], list[LaunchDescriptionEntity]]
"""Returns what to start. It gets the arguments that were given, by the class that declares them."""


def launch_description(
    file: str, kinds: Sequence[type[NodeParameters]], start: Start
) -> LaunchDescription:
    """Return one argument for each parameter of `kinds`, and what `start` makes of those given.

    file: the name of the launch file, for messages. Arguments that were not given are left to the
    node and its parameter file. Wrong ones raise `UserError`, which `ros2 launch` prints in one line
    before anything is started.
    """
    declared: dict[str, list[DeclaredParameter]] = {}
    for parameter in (parameter for kind in kinds for parameter in parameters_of(kind)):
        declared.setdefault(parameter.name, []).append(parameter)
    given: dict[str, str] = {}

    def note_given(context: LaunchContext) -> None:
        given.update({n: t for n, t in context.launch_configurations.items() if n in declared})
        typed = [text.partition(":=")[0] for text in context.argv]
        for name in require_known("argument", typed, declared):
            get_logger().warning(f"{file} has no argument {name}; see --show-args")

    def begin(context: LaunchContext) -> list[LaunchDescriptionEntity]:
        # Left in place, the defaults would count as given in a second include of this file.
        for name in set(declared) - set(given):
            context.launch_configurations.pop(name, None)
        return start(read_values(kinds, given))

    arguments = [_argument(parameters) for parameters in declared.values()]
    return LaunchDescription(
        [OpaqueFunction(function=note_given), *arguments, OpaqueFunction(function=begin)]
    )


def _argument(parameters: Sequence[DeclaredParameter]) -> DeclareLaunchArgument:
    """Return the argument with its help, unit and accepted values, for `--show-args`.

    parameters: of this name; those of the policy stand before those of the simulated robot.
    """
    first, about = parameters[0], parameters[0].about
    details = "; ".join(text for text in (about.unit, first.range_text) if text)
    texts = [about.help + (f" ({details})" if details else "")]
    texts += [
        f"With sim:=true: {p.about.help}" for p in parameters[1:] if p.about.help != about.help
    ]
    return DeclareLaunchArgument(
        first.name, default_value=first.default_text, description=" ".join(texts)
    )
