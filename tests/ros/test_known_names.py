"""Names with typing errors, which ROS would ignore with the limits that they were meant to set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import rclpy
from rclpy.node import Node

from ttm.policy import UserError
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import PolicyParameters, require_known


@pytest.fixture
def ros() -> Iterator[None]:
    yield
    rclpy.shutdown()


def _node(*given: str) -> Node:
    rclpy.init(args=["--ros-args", *(part for text in given for part in ("-p", text))])
    return rclpy.create_node("policy_node")


def test_a_typing_error_is_refused_and_a_stranger_returned() -> None:
    known = ["max_forward_m_s", "max_age_s"]
    assert require_known("argument", ["max_age_s", "rviz"], known) == ["rviz"]
    with pytest.raises(UserError, match="no argument max_ages; did you mean max_age_s"):
        require_known("argument", ["max_ages"], known)


def test_a_node_refuses_a_parameter_with_a_typing_error(ros: None) -> None:
    node = _node("max_forwrad_m_s:=0.1")
    with pytest.raises(UserError, match="no parameter max_forwrad_m_s; did you mean max_forward_m"):
        declare_parameters(node, PolicyParameters)


def test_a_node_goes_on_with_parameters_of_others(ros: None) -> None:
    """A section /** of a file that several nodes share may name parameters of each of them."""
    node = _node("use_sim_time:=true", "gripper_colour:=red", "max_age_s:=0.25")
    declare_parameters(node, PolicyParameters)
    assert read_parameters(node, PolicyParameters).max_age_s == 0.25
