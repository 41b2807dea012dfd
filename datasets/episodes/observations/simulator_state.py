"""Values that only a simulator knows: a policy that learns from them cannot run on a robot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

ROBOSUITE_ROBOT = re.compile(r"robot\d+_")
"""How robosuite names what its robots measure; all its other vectors are of objects and the task."""

OBJECTS = re.compile(r"(^|_)(object|obj|cube[A-Z]?)s?(_|-|$)")
"""Names of objects' poses in robomimic (`object`), robosuite (`cubeA_pos`), RoboCasa
(`obj_to_robot0_eef_pos`) and Isaac Lab (`object`, `cube_positions`, `target_object_position`)."""

ACTIONS = re.compile(r"^(last_|prev_|previous_)?actions?$")
"""Isaac Lab's `actions`: the previous action among the observations."""


def not_measured(name: str, names: Iterable[str]) -> str | None:
    """Return why a vector of `obs` is no measurement of the robot, or None if it may be one.

    names: those of all members of the same `obs`.
    """
    if ACTIONS.search(name):
        return "the previous action, which the network gets anyway"
    of_robosuite = any(ROBOSUITE_ROBOT.match(other) for other in names)
    if OBJECTS.search(name) or (of_robosuite and not ROBOSUITE_ROBOT.match(name)):
        return "simulator state, which no robot measures"
    return None


def json_object(text: Any) -> dict[str, Any]:
    """Return the JSON object in a text attribute, or an empty one if there is none."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
