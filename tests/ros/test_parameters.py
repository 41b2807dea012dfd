"""The parameters of both nodes: what the dataclasses declare is what ROS users and readers see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rcl_interfaces import srv
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message, serialize_message

from ttm.policy import UserError
from ttm_policy.contract import load_contract
from ttm_policy.node_parameters import (
    MOST_IN_A_CALL,
    declare_parameters,
    descriptor,
    read_parameters,
)
from ttm_policy.parameters import (
    LIMIT_KINDS,
    LIMITS,
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
    parameters_of,
)
from ttm_policy.policy_node import PolicyNode
from ttm_policy.recorder_node import RecorderNode
from ttm_policy.simulator.robot import SimNode
from ttm_policy.teleop_node import TeleopNode
from ttm_policy.web.web_node import WebNode

NODES = {
    PolicyParameters: PolicyNode,
    RecorderParameters: RecorderNode,
    SimParameters: SimNode,
    TeleopParameters: TeleopNode,
    WebParameters: WebNode,
}


@pytest.fixture(autouse=True)
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.shutdown()


@pytest.mark.parametrize("kind", NODES)
def test_nodes_declare_every_parameter_with_description_and_range(
    kind: type[NodeParameters],
) -> None:
    node = NODES[kind]()
    for parameter in parameters_of(kind):
        descriptor = node.describe_parameter(parameter.name)
        assert node.get_parameter(parameter.name).value == parameter.default
        assert descriptor.description == parameter.about.help
        assert parameter.range_text in descriptor.additional_constraints
        assert parameter.about.unit in descriptor.additional_constraints
        ranges = [*descriptor.integer_range, *descriptor.floating_point_range]
        assert bool(ranges) == (parameter.type in (int, float))
    node.destroy_node()


@pytest.mark.parametrize("kind", NODES)
def test_ranges_arrive_as_they_are_declared(kind: type[NodeParameters]) -> None:
    """`ros2 param describe` showed 5e-324 as the largest speed: an int in the place of a float."""
    for parameter in parameters_of(kind):
        sent = serialize_message(descriptor(parameter))
        received: Any = deserialize_message(sent, ParameterDescriptor)
        about = parameter.about
        for found in (*received.floating_point_range, *received.integer_range):
            assert about.maximum is None or found.to_value == about.maximum, parameter.name
            assert about.minimum is None or found.from_value == about.minimum, parameter.name


@pytest.mark.parametrize("kind", NODES)
def test_help_texts_are_whole_sentences_and_numbers_have_ranges(kind: type[NodeParameters]) -> None:
    for parameter in parameters_of(kind):
        assert re.fullmatch(r"[A-Z].*\.", parameter.about.help), parameter.name
        if parameter.type in (int, float):
            assert parameter.range_text, parameter.name
        if parameter.name.endswith(("_s", "_m", "_rad")):
            assert parameter.about.unit, parameter.name


def _node(**overrides: Any) -> Node:
    """A node whose parameters were given at the start, as on a command line."""
    given = [Parameter(name, value=value) for name, value in overrides.items()]
    return Node("test_node", parameter_overrides=given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_age_s", 0.0),
        ("max_age_s", float("nan")),
        ("max_age_s", float("inf")),
        ("stop_after_s", -1.0),
        ("max_yaw_rad_s", 0.0),
        ("max_forward_m_s", float("nan")),
        ("threads", 0),
        ("engine", "tensorrt"),
        ("threads", "two"),
    ],
)
def test_values_out_of_range_are_refused_at_the_start_and_later(name: str, value: Any) -> None:
    node = _node(**{name: value})
    with pytest.raises(UserError, match=name):
        declare_parameters(node, PolicyParameters)
    node.destroy_node()

    node = _node()
    declare_parameters(node, PolicyParameters)
    before = read_parameters(node, PolicyParameters)
    result = node.set_parameters([Parameter(name, value=value)])[0]
    assert not result.successful
    assert result.reason
    assert read_parameters(node, PolicyParameters) == before == PolicyParameters()
    node.destroy_node()


def test_given_values_are_read_back() -> None:
    node = _node(threads=2, max_age_s=0.25, engine="torch", instruction="yes")
    declare_parameters(node, PolicyParameters)
    expected = PolicyParameters(threads=2, max_age_s=0.25, engine="torch", instruction="yes")
    assert read_parameters(node, PolicyParameters) == expected
    node.destroy_node()


def test_the_dataclasses_refuse_values_out_of_range() -> None:
    with pytest.raises(UserError, match="episodes is 0; give 1 or more"):
        SimParameters(episodes=0)
    with pytest.raises(UserError, match="max_age_s is nan; give a number above 0"):
        PolicyParameters(max_age_s=float("nan"))


def test_a_largest_value_is_told_and_holds() -> None:
    declared = {parameter.name: parameter for parameter in parameters_of(RecorderParameters)}
    assert declared["jpeg_quality"].range_text == "0 to 95"
    assert descriptor(declared["jpeg_quality"]).integer_range[0].to_value == 95
    assert descriptor(declared["min_fresh"]).floating_point_range[0].to_value == 1
    for wrong in ({"jpeg_quality": 96}, {"min_fresh": 1.1}):
        with pytest.raises(UserError, match="or less"):
            RecorderParameters(**wrong)
    assert RecorderParameters(jpeg_quality=95, min_fresh=1.0).jpeg_quality == 95


@pytest.mark.parametrize("kind", [PolicyParameters, TeleopParameters, WebParameters])
def test_infinity_switches_no_guard_off(kind: type[NodeParameters]) -> None:
    """Limits of acceleration and jerk are the exception: they are off by default."""
    guards = {"max_age_s", "e_stop_timeout_s", *LIMIT_KINDS}
    if kind is PolicyParameters:
        guards |= {"command_rate_hz", "lifespan_ticks"}
    for parameter in parameters_of(kind):
        if parameter.name in guards:
            with pytest.raises(UserError, match=f"{parameter.name} is inf"):
                kind(**{parameter.name: float("inf")})
            assert descriptor(parameter).floating_point_range[0].to_value < 1000
            guards.remove(parameter.name)
    assert not guards


def test_every_limit_of_the_shipped_contract_is_a_parameter() -> None:
    used = {limit for sink in load_contract().actions for limit in sink.limits}
    assert used <= set(LIMIT_KINDS)


def test_every_limit_belongs_to_one_that_contracts_can_name() -> None:
    names = [(kind.speed, kind.acceleration, kind.jerk) for kind in LIMIT_KINDS.values()]
    assert sorted(name for three in names for name in three) == sorted(LIMITS)


LIVE: dict[type[NodeParameters], set[str]] = {
    PolicyParameters: {*LIMITS, "max_age_s", "stop_after_s", "goal_timeout_s", "preempt_goals"},
    TeleopParameters: {*LIMITS},
    WebParameters: {*LIMITS},
}


@pytest.mark.parametrize("kind", NODES)
def test_a_running_node_takes_limits_and_ages_and_says_that_the_rest_is_read_only(
    kind: type[NodeParameters],
) -> None:
    node, changes, live = _node(), [], LIVE.get(kind, set())
    declare_parameters(node, kind, lambda: changes.append(read_parameters(node, kind)))
    for parameter in parameters_of(kind):
        other = 0.25 if parameter.type is float else not parameter.default
        value = other if parameter.name in live else parameter.default
        result = node.set_parameters([Parameter(parameter.name, value=value)])[0]
        assert result.successful == (parameter.name in live), parameter.name
        if parameter.name in live:
            assert getattr(changes[-1], parameter.name) == other
        else:
            assert "read-only" in result.reason
            assert parameter.name in result.reason
    assert len(changes) == len(live)
    node.destroy_node()


def test_integers_are_accepted_for_doubles_at_the_start_and_later() -> None:
    node = _node(max_age_s=1, max_forward_m_s=2)
    declare_parameters(node, PolicyParameters)
    assert read_parameters(node, PolicyParameters) == PolicyParameters(
        max_age_s=1.0, max_forward_m_s=2.0
    )
    assert node.set_parameters([Parameter("max_yaw_rad_s", value=3)])[0].successful
    assert isinstance(node.get_parameter("max_yaw_rad_s").value, float)
    for wrong in (0, -1, True, "3"):
        assert not node.set_parameters([Parameter("max_yaw_rad_s", value=wrong)])[0].successful
    assert node.get_parameter("max_yaw_rad_s").value == 3.0
    node.destroy_node()
    node = _node(max_age_s=0)
    with pytest.raises(UserError, match="max_age_s"):
        declare_parameters(node, PolicyParameters)
    node.destroy_node()


@pytest.mark.parametrize(
    ("service", "request_"),
    [
        (srv.SetParameters, {"parameters": [ParameterMessage(name="checkpoint")]}),
        (srv.SetParametersAtomically, {"parameters": [ParameterMessage(name="checkpoint")]}),
        (srv.GetParameters, {"names": ["checkpoint"]}),
        (srv.GetParameterTypes, {"names": ["checkpoint"]}),
        (srv.DescribeParameters, {"names": ["checkpoint"]}),
        (srv.ListParameters, {"prefixes": ["checkpoint"]}),
    ],
)
def test_a_call_with_more_than_any_node_declares_is_refused_as_a_whole(
    service: Any, request_: dict[str, list[Any]]
) -> None:
    node = _node()
    declare_parameters(node, PolicyParameters)
    (serve,) = (s.callback for s in node.services if s.srv_type is service)

    def answer(count: int) -> str:
        request = service.Request(**{name: one * count for name, one in request_.items()})
        return str(serve(request, service.Response()))

    empty, many = str(service.Response()), answer(MOST_IN_A_CALL + 1)
    assert answer(1) != empty
    assert many == empty or f"at most {MOST_IN_A_CALL} are accepted" in many
    assert len(many) < 1000
    assert all(len(parameters_of(kind)) < MOST_IN_A_CALL / 2 for kind in NODES)
    node.destroy_node()


@pytest.mark.parametrize(
    ("node", "parameters", "words"),
    [
        ("policy_node", {"max_age_s": -1.0}, "policy_node: error: "),
        ("policy_node", {"threads": "two"}, "policy_node: error: "),
        (
            "policy_node",
            {"device": "cuda:99"},
            "device is 'cuda:99', on which PyTorch cannot compute",
        ),
        ("sim_node", {"episodes": 0}, "sim_node: error: "),
        ("sim_node", {"task": "fold"}, "task is 'fold'; give one of pick, open_drawer"),
        ("sim_node", {"env": "no_such/Env-v0"}, "no environment 'no_such/Env-v0'"),
    ],
)
def test_a_node_with_a_bad_parameter_ends_with_one_line_and_code_2(
    start_node: Any, node: str, parameters: dict[str, Any], words: str
) -> None:
    process = start_node(node, **parameters)
    assert process.wait() == 2
    assert words in process.output
    assert next(iter(parameters)) in process.output
    assert "Traceback" not in process.output
