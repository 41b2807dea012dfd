"""The shipped contract fits the simulated robot, mistakes in one are named, and limits of joints hold."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import default_contract, goal_sources, load_contract, measured_goals
from ttm_policy.limits import JointLimit, read_joint_limits
from ttm_policy.messages import check_fields


@pytest.fixture
def data() -> dict[str, Any]:
    """The shipped contract as plain data, for tests to change."""
    return yaml.safe_load(default_contract().read_text())


def _load_and_check(path: Path | None) -> None:
    contract = load_contract(path)
    check_fields(contract)
    contract.check(SPEC)


def _error(data: dict[str, Any], folder: Path) -> str:
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError) as raised:
        _load_and_check(path)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_shipped_contract_fits_the_simulated_robot() -> None:
    _load_and_check(None)


def test_an_unknown_camera_is_named_with_those_there_are(
    data: dict[str, Any], tmp_path: Path
) -> None:
    data["observations"]["hed"] = data["observations"].pop("head")
    assert "camera 'hed' of robot.yaml is not in this checkpoint; it has: head, wrist" in _error(
        data, tmp_path
    )


def test_an_observation_without_a_topic_is_named(data: dict[str, Any], tmp_path: Path) -> None:
    del data["observations"]["wrist"]
    assert "camera 'wrist' of this checkpoint has no topic in robot.yaml" in _error(data, tmp_path)


def test_a_policy_may_see_less_than_the_contract_names(
    data: dict[str, Any], tmp_path: Path
) -> None:
    narrow, contract = (
        replace(SPEC, cameras=SPEC.cameras[:1], proprioception=()),
        load_contract(None),
    )
    seen = contract.for_policy(narrow)
    assert [source.name for source in seen.images] == ["head"]
    assert seen.vectors == contract.vectors  # limits may need them
    assert contract.for_policy(SPEC) == contract
    with pytest.raises(
        UserError, match=r"camera 'wrist' of .* is not in this checkpoint; it has: head"
    ):
        contract.check(narrow)
    del data["observations"]["head"]
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(
        UserError, match=r"camera 'head' of this checkpoint has no topic in robot\.yaml"
    ):
        load_contract(tmp_path / "robot.yaml").for_policy(narrow)


def test_another_robot_is_named(data: dict[str, Any], tmp_path: Path) -> None:
    data["robot"] = "stretch"
    assert "describes robot 'stretch', but this checkpoint is for 'fetch_kitchen'" in _error(
        data, tmp_path
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("executed_action", "executed_action has type None; choose of"),
        ({"topic": "did", "type": "std_msgs/Bool", "fields": ["data"]}, "type 'std_msgs/Bool'"),
        ({"topic": "did", "type": "sensor_msgs/JointState"}, "executed_action lacks fields"),
        (
            {"topic": "did", "type": "sensor_msgs/JointState", "fields": ["x", "y"]},
            "'executed action' of robot.yaml has 2 fields; its values are 10",
        ),
        (
            {
                "topic": "did",
                "type": "nav_msgs/Odometry",
                "fields": [f"twist.v{i}" for i in range(10)],
            },
            "'twist.v0', which is no number",
        ),
    ],
)
def test_mistakes_in_the_executed_action_are_named(
    data: dict[str, Any], tmp_path: Path, entry: Any, words: str
) -> None:
    data["executed_action"] = entry
    assert words in _error(data, tmp_path)


def test_a_robot_need_not_report_what_it_executed(data: dict[str, Any], tmp_path: Path) -> None:
    del data["executed_action"]
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    _load_and_check(path)
    contract = load_contract(path)
    assert contract.executed is None
    assert len(contract.inputs) == len(data["observations"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no contract at"):
        load_contract(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text",
    ["a: [1, 2", "? [a, b]\n: 1", "robot: 2026-13-45", "robot: !!int seven", "a: " + "[" * 3000],
)
def test_broken_files_are_named(text: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    with pytest.raises(UserError, match=r"broken\.yaml is not YAML") as raised:
        load_contract(broken)
    assert "\n" not in str(raised.value)


def test_entries_may_share_keys_by_a_merge_of_yaml(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    text = default_contract().read_text().replace("  head:\n", "  head: &camera\n", 1)
    wrist = "    topic: wrist/image_raw\n    type: sensor_msgs/Image\n    resize: true\n"
    assert text.count(wrist) == 1
    path.write_text(text.replace(wrist, "    <<: *camera\n    topic: wrist/image_raw\n"))
    assert load_contract(path).images == load_contract().images


URDF = """<?xml version="1.0"?><robot name="r">
  <joint name="elbow" type="revolute"><limit lower="-1.5" upper="2" velocity="0.7" effort="1"/></joint>
  <joint name="wheel" type="continuous"><limit velocity="9" effort="1"/></joint>
  <joint name="lift" type="prismatic"><limit upper="0.4" effort="1" velocity="0"/></joint>
  <joint name="camera" type="fixed"/>
  <ros2_control><joint name="elbow"><command_interface name="position"/></joint></ros2_control>
</robot>"""


def test_ranges_and_speeds_are_read() -> None:
    assert read_joint_limits(URDF) == {
        "elbow": JointLimit(-1.5, 2.0, 0.7),
        "wheel": JointLimit(-math.inf, math.inf, 9.0),
        "lift": JointLimit(0.0, 0.4, math.inf),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no URDF"),
        ("<robot><joint></robot>", "is no URDF"),
        ("<robot>" + "<a/>" * 600_000, "has 2400007 characters; at most 2000000 are read"),
        (f"<!DOCTYPE r [<!ENTITY a 'b'>]>{URDF[21:]}", "has a <!DOCTYPE>, which no URDF needs"),
        (f"<robot a='{'b' * 200_000}'/>", "more than 100000 characters without a '>'"),
        ("<sdf/>", "its first element is <sdf>"),
        (URDF.replace('"-1.5"', '"low"'), "lower='low' for joint 'elbow'; give a number"),
        (URDF.replace('"-1.5"', '"nan"'), "lower='nan' for joint 'elbow'; give a number"),
        (URDF.replace('"-1.5"', '"3"'), "lower 3 above upper 2 for joint 'elbow'"),
        (URDF.replace('"0.7"', '"-0.7"'), "velocity -0.7 for joint 'elbow'; give 0 or more"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read_joint_limits(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_joints_are_kept_and_velocities_are_zero() -> None:
    contract = load_contract()
    joints = np.arange(9, dtype=np.float32)
    joints[8] = 0.8  # of the gripper's opening, whose command is 0 or 1
    goals = measured_goals(contract, SPEC, {"joint_positions": joints})
    assert goals.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert [source.name for source in goal_sources(contract)] == ["joint_positions"]


def test_what_is_not_measured_is_not_known() -> None:
    blind = replace(load_contract(), vectors=())
    assert np.isnan(measured_goals(blind, SPEC, {})[SPEC.action_slices["gripper"]]).all()
    assert goal_sources(blind) == ()
