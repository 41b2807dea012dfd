"""`ttm contract check` on fake robots over DDS: what fits, and what is wrong with the remedy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ttm.training import cli

ROBOTS = ("fetch", "turtlebot_arm")
WAIT_S = 180.0
"""Far more than any robot needs to be heard; a test that waits this long has failed."""
LISTEN_S = 1.5
TIMING = re.compile(
    r"it was silent for|it is slower than the|is [0-9.]+ s older than|its stamps are [0-9.]+ s "
)
"""Remarks on rate, silence, skew and age, of which a busy machine may be the cause."""


def _check(contract: Path, seconds: float, **options: Any) -> tuple[int, str]:
    """Run the process that the command starts, and return its exit code and output."""
    values = {"contract": str(contract), "seconds": seconds, "max_age_s": 60.0, **options}
    done = subprocess.run(
        [sys.executable, "-m", "ttm_policy", "live_check", json.dumps(values)],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _check_until(fits: Callable[[str], bool], contract: Path, **options: Any) -> tuple[int, str]:
    """Check again for longer until the output fits: a busy machine may need long to discover a robot."""
    seconds, deadline_s = LISTEN_S, time.monotonic() + WAIT_S
    while True:
        code, output = _check(contract, seconds, **options)
        if fits(output):
            return code, output
        assert time.monotonic() < deadline_s, output
        seconds = min(2 * seconds, WAIT_S / 4)


def _remarks(output: str) -> list[str]:
    """The lines below those of the topics."""
    return [line.strip() for line in output.splitlines() if line.startswith(" " * 7)]


def _has(*words: str) -> Callable[[str], bool]:
    return lambda output: all(word in output for word in words)


@pytest.mark.parametrize("name", ROBOTS)
def test_the_shipped_contract_fits_the_robots_own_interface(
    start_robot: Any, untrained: Any, config: Path, name: str
) -> None:
    start_robot(name)
    options = {"checkpoint": str(untrained(name)), "max_age_s": 2 * WAIT_S}
    contract = config / f"{name}.yaml"

    def misfits(output: str) -> list[str]:
        return [remark for remark in _remarks(output) if not TIMING.search(remark)]

    code, output = _check_until(lambda text: not misfits(text), contract, **options)
    assert code == bool(_remarks(output)), output
    marks = {words[1]: words[0] for line in output.splitlines() if len(words := line.split()) > 1}
    data = yaml.safe_load(contract.read_text())
    for entry in data["observations"].values():
        assert entry["topic"] in marks
        assert re.search(rf"{entry['topic']} +[0-9.]+ Hz", output)
    for entry in data["actions"].values():
        assert marks[entry["topic"]] == "ok"
    assert marks["robot_description"] == "ok"


def test_without_a_robot_every_topic_is_missing(config: Path) -> None:
    code, output = _check(config / "fetch.yaml", 0.2)
    assert code == 1
    contract = yaml.safe_load((config / "fetch.yaml").read_text())
    for entry in contract["observations"].values():
        assert f"WRONG  {entry['topic']}" in output
    assert "nobody publishes it; start the driver" in output
    assert "nobody listens to it; start the driver" in output


def _rename(section: str, old: str, new: str) -> Callable[[dict[str, Any]], object]:
    return lambda robot: robot[section].__setitem__(new, robot[section].pop(old))


def _put(section: str, topic: str, key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda robot: robot[section][topic].__setitem__(key, value)


HEAD = "/head_camera/rgb/image_raw"


def test_each_difference_is_told_with_its_remedy(start_robot: Any, config: Path) -> None:
    """One robot with many faults, since each start costs seconds."""

    def break_everything(robot: dict[str, Any]) -> None:
        _rename("images", HEAD, "/camera/color/image_raw")(robot)
        robot["joints"][0].remove("elbow_flex_joint")
        robot["odometry"]["frame_id"] = "map"
        _put("twists", "/cmd_vel", "type", "TwistStamped")(robot)
        _rename("twists", "/servo_node/delta_twist_cmds", "/servo/twist")(robot)
        robot["description"] = robot["description"].replace("l_gripper", "left_gripper")

    start_robot("fetch", break_everything)
    expected = _has(
        "nobody publishes it; sensor_msgs/Image is there as: /camera/color/image_raw",
        "joint 'elbow_flex_joint' is not in joint_states, which has: ",
        "is in frame 'map'; the contract accepts 'odom'",
        "it is taken as geometry_msgs/TwistStamped, not as geometry_msgs/Twist; write that type",
        "nobody listens to it; geometry_msgs/TwistStamped is there as: /cmd_vel, /servo/twist",
        "ok     e_stop",
        "nobody publishes it: no button stops the policy",
        "it has no joint l_gripper_finger_joint; mend the names in the contract",
        "6 of 8 topics do not fit",
    )
    assert _check_until(expected, config / "fetch.yaml")[0] == 1


def test_joints_that_stay_away_are_not_hidden_by_others(start_robot: Any, config: Path) -> None:
    robot = start_robot("turtlebot_arm")
    robot.silent.add("joint1")  # the wheels' joints go on
    expected = _has(
        "WRONG  joint_states", "joint 'joint1' is not in joint_states, which has: wheel_left_joint"
    )
    assert _check_until(expected, config / "turtlebot_arm.yaml")[0] == 1


def test_old_stamps_and_a_second_publisher_are_told(start_robot: Any, config: Path) -> None:
    for _ in range(2):
        start_robot("turtlebot_arm").lag_s = 1000.0
    expected = _has(
        "s old, and the policy accepts 60 s; synchronise the computers' clocks",
        "it has 4 publishers (fake_robot), and the contract accepts 2",
    )
    assert _check_until(expected, config / "turtlebot_arm.yaml")[0] == 1


def test_a_mistake_in_the_file_or_the_options_is_one_line(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load((config / "fetch.yaml").read_text())
    del data["actions"]["base"]["limit"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    for words, message in (
        ([path], "mine.yaml: action 'base' moves the robot without a limit"),
        ([path, "--seconds", "0"], "--seconds is 0.0; give a number above 0"),
        (
            [config / "fetch.yaml", "--namespace", "left arm"],
            "argument --namespace is 'left arm'; ",
        ),
    ):
        assert cli.main(["contract", "check", *map(str, words)]) == 2
        out, err = capfd.readouterr()
        assert err.startswith(f"ttm: error: {message}")
        assert (out, err.count("\n")) == ("", 1)
