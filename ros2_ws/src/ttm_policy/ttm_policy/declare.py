"""Declares the parameters of a node from their dataclass, and reads their values back."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from ttm.policy.errors import UserError
from ttm_policy.parameters import DeclaredParameter, NodeParameters, parameters_of

Parameters = TypeVar("Parameters", bound=NodeParameters)

LARGEST_INTEGER = 2**63 - 1
"""The upper end of the range of an integer parameter that has only a lower limit."""


def declare_parameters(node: Node, node_parameters: type[NodeParameters]) -> None:
    """Declare all parameters with their help texts and ranges.

    Raises `UserError` if the value that was given at the start has a wrong type or is out of range.
    From then on ROS refuses such values when somebody sets them.
    """
    declared = {parameter.name: parameter for parameter in parameters_of(node_parameters)}

    def check(values: list[Parameter[Any]]) -> SetParametersResult:
        try:
            for value in values:
                if value.name in declared:
                    declared[value.name].check(value.value)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(check)
    for parameter in declared.values():
        try:
            node.declare_parameter(parameter.name, parameter.default, descriptor(parameter))
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise UserError(str(error)) from error


def descriptor(parameter: DeclaredParameter) -> ParameterDescriptor:
    """Return what `ros2 param describe` shows: help text, range, and unit or choices."""
    result = ParameterDescriptor(description=parameter.about.help)
    constraints = [f"unit: {parameter.about.unit}"] if parameter.about.unit else []
    if parameter.range_text:
        constraints.append(f"accepted: {parameter.range_text}")
    result.additional_constraints = "; ".join(constraints)
    least = 0.0 if parameter.about.positive else parameter.about.minimum
    if least is not None and parameter.type is float:
        result.floating_point_range = [FloatingPointRange(from_value=least, to_value=math.inf)]
    elif least is not None and parameter.type is int:
        smallest = int(least) + parameter.about.positive
        result.integer_range = [IntegerRange(from_value=smallest, to_value=LARGEST_INTEGER)]
    return result


def read_parameters(node: Node, node_parameters: type[Parameters]) -> Parameters:
    """Return the values of all parameters as they are now."""
    names = [parameter.name for parameter in parameters_of(node_parameters)]
    return node_parameters(**{name: node.get_parameter(name).value for name in names})
