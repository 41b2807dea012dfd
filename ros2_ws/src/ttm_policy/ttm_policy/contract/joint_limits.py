"""Reads the limits of joints from a robot's description in URDF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from ttm.policy.errors import UserError


@dataclass(frozen=True)
class JointLimit:
    """The range of a joint in rad or m, and its largest speed in rad/s or m/s."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf


def read_joint_limits(description: str) -> Mapping[str, JointLimit]:
    """Return the limit of each joint of a URDF, as `robot_description` has it.

    A continuous joint has no range, and a fixed one is left out. Raises `UserError` if the text is no
    URDF, or if a limit is no number.
    """
    try:
        root = ElementTree.fromstring(description)
    except ElementTree.ParseError as error:
        raise UserError(
            f"robot_description is no URDF ({error}); publish the URDF's text"
        ) from error
    if root.tag != "robot":
        raise UserError(
            f"robot_description is no URDF, its first element is <{root.tag}> and not <robot>; "
            "publish the URDF's text"
        )
    joints = (joint for joint in root.iter("joint") if joint.get("type") not in (None, "fixed"))
    return {str(joint.get("name")): _limit(joint) for joint in joints}


def _limit(joint: ElementTree.Element) -> JointLimit:
    limit = joint.find("limit")
    if limit is None:
        return JointLimit()
    name = joint.get("name")
    velocity = _number(limit, "velocity", math.inf, name)
    if velocity < 0:
        raise UserError(
            f"robot_description has velocity {velocity:g} for joint '{name}'; give 0 or more in the URDF"
        )
    if joint.get("type") == "continuous":
        return JointLimit(velocity=velocity or math.inf)
    lower, upper = (_number(limit, key, 0.0, name) for key in ("lower", "upper"))
    if lower > upper:
        raise UserError(
            f"robot_description has lower {lower:g} above upper {upper:g} for joint '{name}'; mend "
            "the URDF"
        )
    # A velocity of 0 stands for an unknown one in many URDF files.
    return JointLimit(lower, upper, velocity or math.inf)


def _number(limit: ElementTree.Element, key: str, default: float, name: str | None) -> float:
    text = limit.get(key, str(default))
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(
            f"robot_description has {key}={text!r} for joint '{name}'; give a number in the URDF"
        )
    return number
