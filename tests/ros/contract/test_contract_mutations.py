"""Fifty mistakes in a contract: each gets one line with the key, the rule and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import default_contract, load_contract
from ttm_policy.messages import check_fields

Change = Callable[[dict[str, Any]], object]
TWIST, JOINTS = "geometry_msgs/TwistStamped", "trajectory_msgs/JointTrajectory"
FINGER = {"field": "r_gripper_finger_joint", "scale": 0.05}
FINGERS = "actions/gripper/fields"


def put(path: str, value: Any) -> Change:
    """Set the value at a path of keys and list indices."""
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    return lambda data: reduce(lambda d, k: d[k], parents, data).__setitem__(last, value)


def drop(path: str) -> Change:
    *parents, last = path.split("/")
    return lambda data: reduce(lambda d, k: d[k], parents, data).pop(last)


def workspace(**change: Any) -> Change:
    box = {"action": "arm_translation", "position": "ee_pose", "min": [0, -1, 0], "max": [1, 1, 2]}
    return put("workspace", box | change)


MUTATIONS: list[tuple[Change, str, str, str]] = [
    (drop("robot"), "robot.yaml", "lacks robot", "add it"),
    (put("robot", 7), "robot", "7", "give a name without spaces"),
    (put("robot", "fetch"), "robot 'fetch'", "is for 'fetch_kitchen'", "give the contract of"),
    (put("rate_hz", 0), "robot.yaml has rate_hz 0", "ticks a second above 0", "or leave it out"),
    (put("rate_hz", "five"), "robot.yaml", "rate_hz", "five"),
    (put("rate_hz", 10), "robot.yaml says rate_hz 10", "is for 5 Hz", "give the same rate"),
    (put("base_frame", "base link"), "base_frame", "'base link'", "without spaces, such as base_link"),
    (put("robots", []), "robot.yaml", "unknown robots", "it takes"),
    (put("observations", []), "observations", "must map", "to an entry with topic, type"),
    (put("actions", {}), "actions", "at least one name", "to an entry with topic, type"),
    (put("observations/head", None), "observation 'head'", "type None", "choose of: sensor_msgs/Image"),
    (put("observations/head/type", "sensor_msgs/msg/Image"), "observation 'head'", "type", "without /msg"),
    (drop("observations/head/topic"), "observation 'head'", "lacks topic", "add it"),
    (put("observations/head/topic", "head image"),
     "observation 'head'", "topic", "ROS name such as cmd_vel"),
    (put("observations/head/topic", "2d/image"), "observation 'head'", "topic '2d/image'", "ROS name"),
    (put("observations/head/topic", 5), "observation 'head'", "topic 5", "ROS name such as cmd_vel"),
    (put("observations/head/colour", "rgb"), "observation 'head'", "unknown colour", "it takes"),
    (put("observations/head/resize", "no"), "observation 'head'", "resize 'no'", "give true or false"),
    (put("observations/head/fields", ["data"]), "observation 'head'", "unknown fields", "it takes"),
    (drop("observations/wrist"), "camera 'wrist'", "has no topic", "add it there"),
    (put("observations/hed", {"topic": "a", "type": "sensor_msgs/Image"}),
     "camera 'hed'", "is not in", "it has: head"),
    (put("observations/head/topic", "odom"), "topic odom", "has two types", "keep one"),
    (put("observations/ee_pose/fields", []),
     "observation 'ee_pose'", "fields []", "one field for each value"),
    (put("observations/ee_pose/fields", "x"), "observation 'ee_pose'", "fields 'x'", "give a list"),
    (put("observations/ee_pose/fields/0", "pose.x"),
     "'ee_pose'", "'pose.x', which is no number", "ros2 interface show"),
    (put("observations/ee_pose/fields/0", ""),
     "observation 'ee_pose'", "field ''", "give the field's name"),
    (put("observations/ee_pose/fields/0", 3),
     "observation 'ee_pose'", "field 3", "give a mapping with field"),
    (put("observations/ee_pose/fields/1", "pose.position.x"),
     "'ee_pose'", "'pose.position.x' twice", "a field of its own"),
    (put("observations/base_velocity/fields", ["twist.twist.linear.x"]),
     "'base_velocity'", "has 1 fields", "one field for each"),
    (put("executed_action", "yes"), "executed_action", "type None", "choose of: sensor_msgs/JointState"),
    (put("executed_action/topic", "cmd_vel"), "topic cmd_vel", "two types", "keep one"),
    (put("actions/base/type", "std_msgs/Int8"),
     "action 'base'", "type 'std_msgs/Int8'", "choose of: geometry_msgs"),
    (put("actions/base/topic", ""), "action 'base'", "topic ''", "ROS name such as cmd_vel"),
    (put("actions/gripper/topic", "cmd_vel"), "topic cmd_vel", "has two types", "keep one"),
    (put("actions/terminate/topic", "e_stop/"), "action 'terminate'", "topic 'e_stop/'", "ROS name"),
    (drop("actions/base/limit"),
     "action 'base'", "without a limit", "add limit: with one of max_forward_m_s"),
    (put("actions/base/limit", []), "action 'base'", "without a limit", "add limit:"),
    (put("actions/base/limit", "max_speed"),
     "action 'base'", "limit 'max_speed'", "choose of: max_forward_m_s"),
    (put("actions/base/limit", 0.5), "action 'base'", "limit 0.5", "give names of parameters"),
    (put("actions/base/limit", ["max_yaw_rad_s", "max_forward_m_s"]),
     "action 'base'", "is not angular", "for each field"),
    (put("actions/base/limit", "max_forward_m_s"),
     "action 'base'", "'twist.angular.z'", "limit of its own for each field"),
    (put("actions/arm_translation/limit", ["max_translation_m"] * 2),
     "'arm_translation'", "2 limits", "3, one for each field"),
    (put("actions/gripper/limit", "max_yaw_rad_s"),
     "action 'gripper'", "cannot have", "choose of: max_joint_rad_s"),
    (put("actions/terminate/limit", "max_yaw_rad_s"), "action 'terminate'", "cannot have", "leave it out"),
    (put(FINGERS, [FINGER]), "field 'r_gripper_finger_joint'", "without a limit", "add min: and max:"),
    (put(FINGERS, [FINGER | {"min": 0.05, "max": 0}]),
     "'r_gripper_finger_joint'", "min 0.05 and max 0", "give a min below"),
    (put(FINGERS, [FINGER | {"scale": 0}]),
     "field 'r_gripper_finger_joint'", "scale 0", "a finite number that is not 0"),
    (put(FINGERS, [FINGER | {"scale": math.nan}]),
     "'r_gripper_finger_joint'", "scale nan", "give a number"),
    (put(FINGERS, [FINGER | {"scale": 10**400}]),
     "'r_gripper_finger_joint'", "scale 1000", "give a number"),
    (put(FINGERS, [FINGER | {"scale": math.inf}]),
     "'r_gripper_finger_joint'", "scale inf", "a finite number"),
    (put(FINGERS, [FINGER | {"scale": "5 %"}]), "'r_gripper_finger_joint'", "scale '5 %'", "give a number"),
    (put(FINGERS, [FINGER | {"offset": 1}]),
     "action 'gripper'", "unknown offset", "it takes field, max, min, scale"),
    (lambda d: d["actions"]["gripper"].update(limit="max_joint_rad_s", fields=["a", "b"]),
     "joint 'a'", "no observation measures", "add the joint"),
    (put("actions/base/per_second", "true"), "action 'base'", "per_second 'true'", "give true or false"),
    (put("actions/gripper/per_second", True), "action 'gripper'", "is no velocity", "leave per_second out"),
    (put("actions/gripper/smooth", True), "action 'gripper'", "is no velocity", "leave smooth out"),
    (put("actions/base/fields/0", {"field": "twist.linear.x", "max": 1.0}),
     "'twist.linear.x'", "for joints", "use limit:"),
    (put("actions/base/fields/0", "twist.linear"), "'base'", "is not linear", "limit of its own"),
    (put("actions/base/fields", ["twist.linear.x"]),
     "action 'base'", "2 limits", "give one for the whole part"),
    (put("actions/arm_rotation/fields/0", "twist.linear.x"),
     "action 'arm_rotation'", "is not angular", "limit of its own"),
    (put("actions/terminate/fields", ["header.stamp.sec"]),
     "'header.stamp.sec'", "set by the node", "name a field"),
    (put("actions/terminate/fields", [{"field": "data", "scale": 2}]),
     "action 'terminate'", "has a scale", "leave scale out"),
    (put("actions/base/topic", "servo_node/delta_twist_cmds"),
     "actions 'arm_translation' and 'base'", "both set 'twist.linear.x'", "a field of its own"),
    (put("observations/joint_positions/topic", "gripper_controller/joint_trajectory"),
     "joint_trajectory", "two types", "keep one"),
    (lambda d: d["observations"]["base_velocity"].update(topic="cmd_vel",
         type=TWIST, fields=["twist.linear.x", "twist.angular.z"]),
     "topic cmd_vel feeds 'base_velocity'", "must not see its own command", "name the robot's topic"),
    (drop("actions/terminate"), "action part 'terminate'", "has no topic", "add it there"),
    (put("workspace", [0, 1]), "workspace", "[0, 1]", "give a mapping with action, max, min, position"),
    (workspace(action="gripper"), "workspace", "action 'gripper'", "name an action part"),
    (workspace(position="odom"), "workspace", "position 'odom'", "name an observation with"),
    (workspace(min=[0, 0]), "workspace", "min [0, 0]", "give a list of x, y and z"),
    (workspace(min=[0, 0, "low"]), "workspace", "'low'", "give a number"),
    (workspace(max=[0, 1, 2]), "workspace", "min that is not below its max", "both corners"),
]  # fmt: skip


def _load_and_check(path: Path) -> None:
    contract = load_contract(path)
    check_fields(contract)
    contract.check(SPEC)


@pytest.mark.parametrize(("change", "key", "rule", "remedy"), MUTATIONS)
def test_a_mistake_gets_one_line_with_key_rule_and_remedy(
    change: Change, key: str, rule: str, remedy: str, tmp_path: Path
) -> None:
    data = yaml.safe_load(default_contract().read_text())
    change(data)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError) as raised:
        _load_and_check(path)
    message = str(raised.value)
    for words in (key, rule, remedy):
        assert words in message
    assert "\n" not in message
    assert "robot.yaml" in message


def test_there_are_fifty_of_them() -> None:
    assert len(MUTATIONS) >= 50


@pytest.mark.parametrize("repeated", ["robot: other", "actions: {}"])
def test_a_key_that_comes_twice_is_refused(repeated: str, tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(f"{default_contract().read_text()}\n{repeated}\n")
    with pytest.raises(UserError, match="comes twice; remove one") as raised:
        load_contract(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", [TWIST, "geometry_msgs/Twist"])
def test_a_valid_workspace_is_read(kind: str, tmp_path: Path) -> None:
    data = yaml.safe_load(default_contract().read_text())
    workspace()(data)
    fields = [f"linear.{axis}" for axis in "xyz"]
    fields = [f"twist.{field}" for field in fields] if kind == TWIST else fields
    data["actions"]["arm_translation"].update(topic="arm", type=kind, fields=fields)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    box = load_contract(path).workspace
    assert box is not None
    assert (box.minimum, box.maximum) == ((0.0, -1.0, 0.0), (1.0, 1.0, 2.0))
