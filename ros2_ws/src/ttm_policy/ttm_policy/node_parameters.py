"""Declares the parameters of a node from their dataclass, and reads their values back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.service import Service

from ttm.policy.errors import UserError
from ttm_policy.parameters import DeclaredParameter, NodeParameters, parameters_of, require_known

Parameters = TypeVar("Parameters", bound=NodeParameters)
MOST_IN_A_CALL = 200
"""So many names or values one call of a parameter service may have, since it holds the thread of the node."""
LARGEST_INTEGER = 2**63 - 1
"""The upper end of the range of an integer parameter that has only a lower limit."""
_LISTS = {
    SetParameters: "parameters",
    SetParametersAtomically: "parameters",
    GetParameters: "names",
    GetParameterTypes: "names",
    DescribeParameters: "names",
    ListParameters: "prefixes",
}
"""What a call of each parameter service has any number of."""


def declare_parameters(
    node: Node, node_parameters: type[NodeParameters], on_change: Callable[[], None] | None = None
) -> None:
    """Declare all parameters with their help texts and ranges. Integers are accepted for doubles.

    on_change: called after a live parameter of the running node was set; the others are read-only. Raises
    `UserError` if a value that was given at the start has a wrong type or is out of range. The parameter
    services refuse such values later, and calls with more than `MOST_IN_A_CALL` names or values.
    """
    declared = {parameter.name: parameter for parameter in parameters_of(node_parameters)}
    given = [
        name
        for name in node._parameter_overrides
        if not node.has_parameter(name) and not name.startswith("qos_overrides.")
    ]
    for name in require_known("parameter", given, declared):
        node.get_logger().warning(f"there is no parameter {name}; see `ros2 param list`")

    def check(values: list[Parameter[Any]]) -> SetParametersResult:
        try:
            for value in values:
                if value.name in declared:
                    declared[value.name].check(value.value)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def as_double(value: Parameter[Any]) -> Parameter[Any]:
        is_double = value.name in declared and declared[value.name].type is float
        if is_double and value.type_ is Parameter.Type.INTEGER:
            return Parameter(value.name, value=float(value.value))
        return value

    for name, value in node._parameter_overrides.items():
        node._parameter_overrides[name] = as_double(value)
    node.add_on_set_parameters_callback(check)
    for parameter in declared.values():
        try:
            node.declare_parameter(parameter.name, parameter.default, descriptor(parameter))
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise UserError(str(error)) from error
    node.add_pre_set_parameters_callback(lambda values: [as_double(value) for value in values])
    for service in node.services:
        if service.srv_type in _LISTS:
            service.callback = _bounded(node, service, _LISTS[service.srv_type])
    if on_change is not None:
        node.add_post_set_parameters_callback(
            lambda values: on_change() if any(v.name in declared for v in values) else None
        )


def read_parameters(node: Node, node_parameters: type[Parameters]) -> Parameters:
    """Return the values of all parameters as they are now."""
    names = [parameter.name for parameter in parameters_of(node_parameters)]
    return node_parameters(**{name: node.get_parameter(name).value for name in names})


def descriptor(parameter: DeclaredParameter) -> ParameterDescriptor:
    """Return what `ros2 param describe` shows: help text, range, and unit or choices."""
    about = parameter.about
    result = ParameterDescriptor(description=about.help, read_only=not about.live)
    constraints = [f"unit: {about.unit}"] if about.unit else []
    if parameter.range_text:
        constraints.append(f"accepted: {parameter.range_text}")
    result.additional_constraints = "; ".join(constraints)
    least = 0.0 if about.positive else about.minimum
    most = about.maximum
    if least is not None and parameter.type is float:
        # ROS writes the bits of an int that stands where a float belongs: 10 arrives as 5e-324.
        ends = {"from_value": float(least), "to_value": math.inf if most is None else float(most)}
        result.floating_point_range = [FloatingPointRange(**ends)]
    elif least is not None and parameter.type is int:
        smallest = int(least) + about.positive
        largest = LARGEST_INTEGER if most is None else int(most)
        result.integer_range = [IntegerRange(from_value=smallest, to_value=largest)]
    return result


def _bounded(node: Node, service: Service[Any, Any], listing: str) -> Callable[[Any, Any], Any]:
    """Return the callback of a parameter service that refuses a request whose `listing` is too long."""
    answer = service.callback

    def serve(request: Any, response: Any) -> Any:
        given = len(getattr(request, listing))
        if given <= MOST_IN_A_CALL:
            return answer(request, response)
        reason = (
            f"{service.srv_name} was called with {given} {listing}; at most {MOST_IN_A_CALL} are "
            "accepted: make several calls"
        )
        node.get_logger().warning(reason, throttle_duration_sec=1.0)
        refusal = SetParametersResult(successful=False, reason=reason)
        if isinstance(response, SetParameters.Response):
            response.results = [refusal]  # one for all, since as many as were given take long, too
        elif isinstance(response, SetParametersAtomically.Response):
            response.result = refusal
        return response

    return serve
