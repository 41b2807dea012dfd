"""Reads the limits of joints from a robot's description in URDF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from xml.etree import ElementTree

from ttm.policy.errors import UserError

LONGEST = 2_000_000
"""Characters of a description that is read. Those of the largest robots have some 300,000."""

Attributes = Mapping[str, str]

LONGEST_TAG = 100_000
"""Characters of one element's attributes, at most."""

CHUNK = 10_000
"""Characters that are parsed at once. Other threads, such as that of the emergency stop, wait meanwhile."""


@dataclass(frozen=True)
class JointLimit:
    """The range of a joint in rad or m, and its largest speed in rad/s or m/s."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf


def read_joint_limits(description: str) -> Mapping[str, JointLimit]:
    """Return the limit of each joint of a URDF, as `robot_description` has it.

    A continuous joint has no range, and a fixed one is left out. Raises `UserError` if the text is no
    URDF, if it is longer than `LONGEST`, or if a limit is no number.
    """
    if len(description) > LONGEST:
        raise UserError(
            f"robot_description has {len(description)} characters; at most {LONGEST} are read: publish the "
            "URDF without what is no part of it, such as the meshes themselves"
        )
    if "<!DOCTYPE" in description:  # a few entities can stand for gigabytes
        raise UserError("robot_description has a <!DOCTYPE>, which no URDF needs; remove it")
    try:
        robot = _parse(description)
    except ElementTree.ParseError as error:
        raise UserError(
            f"robot_description is no URDF ({error}); publish the URDF's text"
        ) from error
    if robot.first != "robot":
        raise UserError(
            f"robot_description is no URDF, its first element is <{robot.first}> and not <robot>; "
            "publish the URDF's text"
        )
    return {
        str(joint.get("name")): _limit(joint, limits[0] if limits else None)
        for joint, limits in robot.joints
        if joint.get("type") not in (None, "fixed")
    }


class _Robot:
    """What is read of a URDF. No tree is made, which takes long to make and to throw away."""

    def __init__(self) -> None:
        self.first = ""
        """The name of the first element."""
        self.joints: list[tuple[Attributes, list[Attributes]]] = []
        """The attributes of each joint, and those of its limits."""
        self._open: list[list[Attributes] | None] = []
        """For each element that has not ended, the limits of the joint that it is, or None."""

    def start(self, tag: str, attributes: Attributes) -> None:
        """Take note of an element that begins."""
        self.first = self.first or tag
        limits = self._open[-1] if self._open else None
        if tag == "limit" and limits is not None:
            limits.append(attributes)
        own: list[Attributes] | None = [] if tag == "joint" else None
        self._open.append(own)
        if own is not None:
            self.joints.append((attributes, own))

    def end(self, tag: str) -> None:
        """Take note that the newest element has ended."""
        self._open.pop()

    def close(self) -> _Robot:
        """Return what was read."""
        return self


def _parse(text: str) -> _Robot:
    """Parse XML piece by piece, since the parser lets no other thread run while it has a piece."""
    parser = ElementTree.XMLParser(target=_Robot())
    tag_begin = 0
    for begin in range(0, len(text), CHUNK):
        piece = text[begin : begin + CHUNK]
        if ">" in piece:
            tag_begin = begin
        elif begin - tag_begin > LONGEST_TAG:  # a tag is parsed at once when it ends
            raise UserError(
                f"robot_description has more than {LONGEST_TAG} characters without a '>'; publish a URDF"
            )
        parser.feed(piece)
    return cast(_Robot, parser.close())


def _limit(joint: Attributes, limit: Attributes | None) -> JointLimit:
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


def _number(limit: Attributes, key: str, default: float, name: str | None) -> float:
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
