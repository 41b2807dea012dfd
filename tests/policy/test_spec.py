"""The spec, and the checks of values that users give."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest

from ttm.policy import Action, ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec, UserError
from ttm.policy.errors import (
    MalformedObservation,
    options,
    require_above_0,
    require_at_least,
    require_at_most,
    require_choice,
    require_portion,
    require_some,
    require_valid_fields,
)
from ttm.policy.spec import resize_frame


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
        ("both", 0.0, 1.0, "give one of continuous, binary"),
    ],
)
def test_commands_and_limits_that_are_none_are_refused(
    kind: Any, low: float, high: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        ActionPart("gripper", 1, "", kind, low, high)


def test_a_limit_that_no_float_holds_is_no_spec(spec: PolicySpec) -> None:
    data = json.loads(spec.to_json())
    data["actions"][0]["low"] = -(10**400)
    with pytest.raises(UserError, match="not a PolicySpec in JSON"):
        PolicySpec.from_json(json.dumps(data))


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


@dataclass(frozen=True)
class Sizes:
    layers: int = 0
    width: int = 1
    rate: float = -1.0
    shared: bool = False
    kind: Literal["mean", "sum"] = "mean"
    name: str = ""


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: require_at_least(2, {"--window": 1}), "--window is 1; give 2 or more"),
        (lambda: require_at_least(0, {"--gap": float("nan")}), "--gap is nan; give 0 or more"),
        (lambda: require_above_0({"--minutes": 0}), "--minutes is 0; give a number above 0"),
        (lambda: require_at_most(95, {"--quality": 96}), "--quality is 96; give 95 or less"),
        (lambda: require_at_most(1, {"a": float("nan")}), "a is nan; give 1 or less"),
        (lambda: require_portion({"a": 0, "b": 1.5}), "b is 1.5; give a portion from 0 to 1"),
        (lambda: require_some({"--seeds": ()}), "--seeds is empty; give one value or more"),
        (lambda: require_choice("kind", "max", ("mean", "sum")), "'max'; give one of mean, sum"),
        (lambda: require_valid_fields(Sizes(layers=-1), {"layers": 0}), "layers is -1; give 0 or"),
        (lambda: require_valid_fields(Sizes(width=0), {}), "layers is 0; give 1 or more"),
        (
            lambda: require_valid_fields(Sizes(layers=1, kind="max"), {}),
            "kind is 'max'; give one of mean",
        ),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_value_and_the_rule(check: Callable[[], None], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check()


def test_values_that_are_left_out_or_within_the_rules_pass() -> None:
    require_at_least(2, {"a": None, "b": 2})
    require_above_0({"a": None, "b": 0.1})
    require_at_most(2, {"a": None, "b": 2})
    require_portion({"a": None, "b": 0, "c": 1})
    require_some({"a": None, "b": (0,)})
    require_choice("kind", "sum", ("mean", "sum"))
    require_valid_fields(Sizes(), {"layers": 0})


def test_options_have_the_names_of_the_command_line() -> None:
    @dataclass
    class Command:
        batch_size: int = 4

    assert options(Command(), "batch_size") == {"--batch-size": 4}


def test_an_action_names_its_parts(spec: PolicySpec) -> None:
    values = np.array([0.05, -0.1, 0.033333, 1], np.float32)
    action = Action(spec, values, np.array([*values[:3], 0.875], np.float32))
    assert action.part("arm").tolist() == values[:3].tolist()
    assert repr(action) == "arm (m): 0.05, -0.1, 0.03333\ngripper: 1 (probability of 1: 0.88)"
    with pytest.raises(UserError, match="no part 'hand'; give one of arm, gripper"):
        action.part("hand")


def test_a_robot_may_have_more_than_a_policy_observes_but_nothing_less(spec: PolicySpec) -> None:
    narrow = replace(spec, cameras=spec.cameras[:1], proprioception=())
    narrow.require_robot(spec, ours="a.safetensors")
    assert spec.seen_by(narrow) == narrow
    turned = replace(spec, cameras=spec.cameras[::-1])
    turned.require_robot(spec, ours="a.safetensors")
    with pytest.raises(
        UserError, match="made for cameras head 32x32, wrist 32x32, but this robot has head 32x32;"
    ):
        replace(narrow, cameras=spec.cameras).require_robot(narrow, ours="a.safetensors")
    with pytest.raises(UserError, match=r"proprioception joints.left.2., but this robot has none;"):
        replace(spec, cameras=narrow.cameras).require_robot(narrow, ours="a.safetensors")
    with pytest.raises(UserError, match=r"was made for rate_hz 5.0, but this robot has 2.0"):
        narrow.require_robot(replace(spec, rate_hz=2.0), ours="a.safetensors")


def with_head(spec: PolicySpec, height: int, width: int) -> PolicySpec:
    return replace(spec, cameras=(CameraSpec("head", height, width), spec.cameras[1]))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 64), (33, 80), (480, 640)])
def test_larger_cameras_serve_a_policy_as_their_reduced_frames(
    spec: PolicySpec, height: int, width: int
) -> None:
    robot = with_head(spec, height, width)
    spec.require_robot(robot, ours="a.safetensors")
    assert robot.seen_by(spec) == spec
    frames = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    given = {"head": frames, "wrist": np.zeros((32, 32, 3), np.uint8), "joints.left": np.zeros(2)}
    seen = spec.seen(given)
    assert np.array_equal(seen["head"], resize_frame(frames, 32, 32))
    assert seen["wrist"] is given["wrist"]
    assert (seen is given) == ((height, width) == (32, 32)), "frames that fit cost nothing"
    assert given["head"] is frames


@pytest.mark.parametrize(("height", "width"), [(16, 16), (31, 32), (64, 16), (16, 640)])
def test_no_side_of_a_frame_is_enlarged(spec: PolicySpec, height: int, width: int) -> None:
    with pytest.raises(
        UserError, match=rf"head 32x32.* has head {width}x{height}.*that size or larger, or train"
    ):
        spec.require_robot(with_head(spec, height, width), ours="a.safetensors")
    frames = {
        "head": np.zeros((height, width, 3), np.uint8),
        "wrist": np.zeros((32, 32, 3), np.uint8),
    }
    with pytest.raises(MalformedObservation, match=r"'head' gave .*\(32, 32, 3\)"):
        spec.seen(frames | {"joints.left": np.zeros(2)})


@pytest.mark.parametrize(
    "frame",
    [np.zeros((64, 64, 3)), np.zeros((64, 64), np.uint8), np.zeros((64, 64, 4), np.uint8), None],
)
def test_what_is_no_rgb_frame_is_not_reduced(spec: PolicySpec, frame: Any) -> None:
    with pytest.raises(MalformedObservation, match="camera 'head' gave"):
        spec.seen({"head": frame, "wrist": np.zeros((32, 32, 3), np.uint8)})
