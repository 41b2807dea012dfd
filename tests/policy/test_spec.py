"""The two commands of binary parts, in the spec and in its JSON, and the end that one may tell."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec, UserError


@pytest.mark.parametrize(
    ("part", "commands"),
    [
        (ActionPart("gripper", 1, "", "binary"), (0.0, 1.0)),
        (ActionPart("gripper", 1, "", "binary", 0.0, 1.0), (0.0, 1.0)),
        (ActionPart("gripper", 1, "", "binary", -1.0, 1.0), (-1.0, 1.0)),
        (ActionPart("arm", 2, "m", low=-0.1), (-0.1, math.inf)),
    ],
)
def test_limits_are_the_two_commands_of_a_binary_part(
    spec: PolicySpec, part: ActionPart, commands: tuple[float, float]
) -> None:
    assert part.limits == commands
    low, high = replace(spec, actions=(part,)).action_limits
    assert (low[0], high[0]) == pytest.approx(commands)


def test_the_commands_survive_json(spec: PolicySpec) -> None:
    """Specs of older files, whose binary parts have limits of 0 and 1 or null, mean 0 and 1."""
    made = replace(spec, actions=(ActionPart("gripper", 1, "", "binary", -1.0, 1.0),))
    assert PolicySpec.from_json(made.to_json()) == made
    old = json.loads(spec.to_json())
    old["actions"][1] |= {"low": None, "high": None}
    assert PolicySpec.from_json(json.dumps(old)).actions[1].limits == (0, 1)


@pytest.mark.parametrize("rate_hz", [0.0, -5.0, math.inf, math.nan])
def test_a_rate_is_finite_and_above_0(spec: PolicySpec, rate_hz: float) -> None:
    with pytest.raises(UserError, match=f"rate_hz is {rate_hz}; give a finite control rate"):
        replace(spec, rate_hz=rate_hz)


@pytest.mark.parametrize("name", ["../../up", "/root", "a/b", "..", ".", ""])
def test_cameras_and_vectors_have_names_that_a_folder_may_have(spec: PolicySpec, name: str) -> None:
    with pytest.raises(UserError, match="give one without /"):
        replace(spec, cameras=(CameraSpec(name, 4, 4),))
    with pytest.raises(UserError, match="give one without /"):
        replace(spec, proprioception=(ProprioceptionSpec(name, ("x",)),))


def test_thresholds_lie_between_the_commands(spec: PolicySpec) -> None:
    gripper = ActionPart("gripper", 1, "", "binary", 0.0, 0.08)
    assert replace(spec, actions=(spec.actions[0], gripper)).thresholds == pytest.approx(
        [0, 0, 0, 0.04]
    )


@pytest.mark.parametrize(
    ("kind", "low", "high", "message"),
    [
        ("binary", 1.0, 1.0, "give its two commands"),
        ("binary", -1.0, math.inf, "give its two commands"),
        ("binary", -math.inf, 1.0, "give its two commands"),
        ("binary", math.nan, math.nan, "give its two commands"),
        ("continuous", 1.0, -1.0, "give its limits"),
        ("continuous", math.nan, 1.0, "give its limits"),
        ("both", 0.0, 1.0, "take continuous or binary"),
    ],
)
def test_commands_and_limits_that_are_none_are_refused(
    kind: Any, low: float, high: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        ActionPart("gripper", 1, "", kind, low, high)


def test_parts_of_the_same_name_are_refused(spec: PolicySpec) -> None:
    with pytest.raises(UserError, match=r"action names .* repeat"):
        replace(spec, actions=(spec.actions[0], spec.actions[0]))


@pytest.mark.parametrize(
    ("part", "value", "done"),
    [
        (ActionPart("terminate", 1, "", "binary"), 0.5, True),
        (ActionPart("terminate", 1, "", "binary", -1.0, 1.0), -0.1, False),
        (ActionPart("terminate", 1, "", low=0.0, high=1.0), 0.9, False),
        (ActionPart("gripper", 1, "", "binary"), 1.0, False),
    ],
)
def test_a_binary_part_called_terminate_says_that_the_task_is_done(
    spec: PolicySpec, part: ActionPart, value: float, done: bool
) -> None:
    action = np.array([value], np.float32)
    assert replace(spec, actions=(part,)).says_done(action) is done
