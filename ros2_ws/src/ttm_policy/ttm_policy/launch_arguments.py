"""Launch arguments made from the parameters of the nodes. Only launch files import this module.

It needs ROS's `launch` and `launch_ros`, which come with a ROS 2 install and not with the wheels of
`rclpy`.
"""

from __future__ import annotations

from typing import Any

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterValue

from ttm_policy.parameters import DeclaredParameter, NodeParameters, parameters_of


def declare_arguments(
    node_parameters: type[NodeParameters], **defaults: Any
) -> list[DeclareLaunchArgument]:
    """Return one launch argument for each parameter.

    defaults: substitutions in place of the parameters' own.
    """
    return [
        DeclareLaunchArgument(
            parameter.name,
            default_value=defaults.get(parameter.name, parameter.default_text),
            description=describe(parameter),
        )
        for parameter in parameters_of(node_parameters)
    ]


def parameter_values(node_parameters: type[NodeParameters]) -> dict[str, ParameterValue]:
    """Return the node's parameters with the values of the launch arguments.

    The values are typed, since launch would otherwise read an instruction such as `yes` as YAML.
    """
    return {
        parameter.name: ParameterValue(
            LaunchConfiguration(parameter.name), value_type=parameter.type
        )
        for parameter in parameters_of(node_parameters)
    }


def describe(parameter: DeclaredParameter) -> str:
    """Return the help text with unit and accepted values, for `--show-args`."""
    details = [parameter.about.unit] if parameter.about.unit else []
    details += [parameter.range_text] if parameter.range_text else []
    return parameter.about.help + (f" ({'; '.join(details)})" if details else "")
