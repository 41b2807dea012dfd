"""The limits of joints in a URDF."""

from __future__ import annotations

import math

import pytest

from ttm.policy import UserError
from ttm_policy.limits import JointLimit, read_joint_limits

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
