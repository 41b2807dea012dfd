"""The precedence of parameter files, as a node of ROS reads them, and the values of launch arguments."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm_policy.launching import (
    check_name,
    read_value,
    read_values,
    require_sections,
    write_parameters,
)
from ttm_policy.parameters import PolicyParameters, SimParameters, parameters_of

READ = """
import sys, rclpy
rclpy.init(args=sys.argv)
node = rclpy.create_node("policy_node", automatically_declare_parameters_from_overrides=True)
print([node.get_parameter(name).value for name in ("low", "middle", "high")])
"""
SECTION = "{name}:\n  ros__parameters: {{middle: file, high: file}}\n"


@pytest.mark.parametrize(
    "content",
    [
        SECTION.format(name="/**"),
        SECTION.format(name="policy_node"),
        SECTION.format(name="/policy_node"),
        SECTION.format(name="/**") + SECTION.format(name="policy_node"),
        SECTION.format(name="policy_node") + SECTION.format(name="/**"),
    ],
)
def test_defaults_give_way_to_the_users_file_and_that_to_what_was_given(
    content: str, tmp_path: Path
) -> None:
    user = tmp_path / "user.yaml"
    user.write_text(content)
    values = dict.fromkeys(("low", "middle", "high"), "default")
    files = [
        write_parameters(tmp_path / "defaults.yaml", values),
        user,
        write_parameters(tmp_path / "given.yaml", {"high": "given"}, node="policy_node"),
    ]
    command = [sys.executable, "-c", READ, "--ros-args"]
    for file in files:
        command += ["--params-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['default', 'file', 'given']"


@pytest.mark.parametrize(
    "name", ["/**", "left/policy_node", "/left/policy_node", "/**/policy_node", "/*/policy_node"]
)
def test_a_section_that_means_the_node_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("/other:\n  ros__parameters: {a: 1}\n" + SECTION.format(name=name))
    require_sections(str(path), ["/left/policy_node"])
    nested = tmp_path / "nested.yaml"
    nested.write_text("left:\n  policy_node:\n    ros__parameters: {a: 1}\n")
    require_sections(str(nested), ["/left/policy_node"])


@pytest.mark.parametrize("name", ["policy_node", "/right/policy_node", "/left/policy", "/*"])
def test_a_file_for_another_node_is_refused(name: str, tmp_path: Path) -> None:
    """ROS would ignore it with all the limits that it sets."""
    path = tmp_path / "mine.yaml"
    path.write_text(SECTION.format(name=name))
    with pytest.raises(UserError, match=r"nothing for /left/policy_node.*/\*\*/policy_node"):
        require_sections(str(path), ["/left/policy_node"])


def test_a_section_for_one_of_the_nodes_is_enough_and_a_typing_error_is_not(tmp_path: Path) -> None:
    nodes, path = ["/policy_node", "/teleop_node", "/sim_node"], tmp_path / "mine.yaml"
    others = SECTION.format(name="/move_group") + SECTION.format(name="/joy_teleop_node")
    path.write_text(SECTION.format(name="/**/policy_node") + others)
    require_sections(str(path), nodes)
    path.write_text(SECTION.format(name="sim_node") + SECTION.format(name="/**/polcy_node"))
    with pytest.raises(UserError, match=r"polcy_node; did you mean policy_node\?"):
        require_sections(str(path), nodes)


@pytest.mark.parametrize("content", ["a: [", "a: 2026-13-45", "- 1\n", "", "max_age_s: 1\n"])
def test_a_file_without_parameters_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"mine\.yaml") as caught:
        require_sections(str(path), ["/policy_node"])
    assert "\n" not in str(caught.value)


POLICY = {parameter.name: parameter for parameter in parameters_of(PolicyParameters)}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("autostart", "True", True),
        ("autostart", "0", False),
        ("threads", "2", 2),
        ("max_age_s", "1", 1.0),
        ("max_forward_accel_m_s2", "inf", math.inf),
        ("instruction", "yes", "yes"),
        ("instruction", "007", "007"),
        ("checkpoint", "~/policy.safetensors", str(Path.home() / "policy.safetensors")),
    ],
)
def test_a_text_becomes_a_value_of_the_declared_type(name: str, text: str, value: Any) -> None:
    read = read_value(POLICY[name], text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["", "1.5", "two"])
def test_a_text_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"argument threads is '{text}'; give a whole number"):
        read_value(POLICY["threads"], text)


def test_a_shared_argument_counts_for_both_nodes() -> None:
    given = {"lockstep": "true", "episodes": "3"}
    values = read_values((PolicyParameters, SimParameters), given)
    assert values == {
        PolicyParameters: {"lockstep": True},
        SimParameters: {"lockstep": True, "episodes": 3},
    }


@pytest.mark.parametrize("name", ["left", "/left", "lab/left", "~/cmd_vel", "a_1/b2"])
def test_names_of_ros_are_accepted(name: str) -> None:
    assert check_name("namespace", name) == name


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a//b", "a/", "a b", "a/1", "ä"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="give names of letters, digits and _"):
        check_name("namespace", name)
