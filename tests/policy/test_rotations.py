"""Rotations as they are written, and parts of the action that are predicted as turns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from ttm.policy import (
    ActionPart,
    Policy,
    PolicyConfig,
    PolicyRunner,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
)
from ttm.policy.config import EngineName
from ttm.policy.references import ROTATION_SIZES
from ttm.policy.relative import RelativeActions, deviation, matrices, nearest, written
from ttm.policy.snapshot import snapshot_from_bytes, snapshot_to_bytes

FORMS = tuple(ROTATION_SIZES)
CHUNK = 3


def as_written(rotations: Rotation, form: str) -> np.ndarray:
    """What SciPy writes for rotations."""
    matrix = rotations.as_matrix()
    values = {
        "xyzw": rotations.as_quat(canonical=True),
        "wxyz": np.roll(rotations.as_quat(canonical=True), 1, axis=-1),
        "rotvec": rotations.as_rotvec(),
        "rpy": rotations.as_euler("xyz"),
        "6d-columns": np.concatenate([matrix[..., 0], matrix[..., 1]], axis=-1),
        "6d-rows": np.concatenate([matrix[..., 0, :], matrix[..., 1, :]], axis=-1),
    }
    return values[form]


def some_rotations(count: int = 40) -> Rotation:
    """Random rotations, and half turns and right angles of pitch, at which formulas divide by 0."""
    half_turns = Rotation.from_rotvec(np.pi * np.eye(3)).as_matrix()
    pitched = Rotation.from_euler("xyz", [[0.3, s * np.pi / 2, -0.8] for s in (1, -1)]).as_matrix()
    given = [Rotation.random(count, np.random.default_rng(0)).as_matrix(), half_turns, pitched]
    return Rotation.from_matrix(np.concatenate([*given, np.eye(3)[None]]))


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_those_of_scipy(form: str) -> None:
    plain = Rotation.random(40, np.random.default_rng(1))
    np.testing.assert_allclose(
        matrices(torch.from_numpy(as_written(plain, form)), form).numpy(),
        plain.as_matrix(),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        written(torch.from_numpy(plain.as_matrix()), form).numpy(),
        as_written(plain, form),
        atol=1e-9,
    )
    exact = torch.from_numpy(some_rotations().as_matrix())
    torch.testing.assert_close(matrices(written(exact, form), form), exact, rtol=0, atol=1e-9)
    assert deviation(written(exact, form), form).max() < 1e-6
    assert deviation(50 * written(exact, form), form).max() > 1
    assert written(torch.full((2, 3, 3), torch.nan), form).isnan().all()


def robot(form: str, measured: str, pose: bool = False) -> PolicySpec:
    """A robot with a gripper whose tip goes to orientations or poses."""
    vectors = (("tip_pos", 3), ("tip_turn", ROTATION_SIZES[measured]))
    return PolicySpec(
        robot="gripper",
        cameras=(),
        proprioception=tuple(
            ProprioceptionSpec(name, tuple(f"{name}{i}" for i in range(n))) for name, n in vectors
        ),
        actions=(
            ActionPart("tip", 3 * pose + ROTATION_SIZES[form], "unknown"),
            ActionPart("closed", 1, "", "binary", 0.0, 1.0),
        ),
        rate_hz=5.0,
    )


def said(form: str, measured: str, pose: bool = False) -> str:
    """The declaration for `robot`."""
    if pose:
        return f"tip:pose-{form}=tip_pos+tip_turn:pose-{measured}"
    return f"tip:{form}=tip_turn:{measured}"


@pytest.mark.parametrize("pose", [False, True])
@pytest.mark.parametrize(("form", "measured"), [*zip(FORMS, FORMS[::-1], strict=True)])
def test_a_round_trip_gives_the_commands_again(form: str, measured: str, pose: bool) -> None:
    spec, relative = robot(form, measured, pose), said(form, measured, pose)
    actions = RelativeActions(spec, [relative])
    rng = np.random.default_rng(2)
    start, goal = (Rotation.random(50, rng) for _ in range(2))
    begin, end = rng.normal(size=(2, 50, 3))
    written_goal = [end, as_written(goal, form)] if pose else [as_written(goal, form)]
    commands = torch.from_numpy(np.concatenate([*written_goal, np.ones((50, 1))], axis=1))
    now = {
        "tip_pos": torch.from_numpy(begin),
        "tip_turn": torch.from_numpy(as_written(start, measured)),
    }
    plans = actions.plan(actions.averageable(commands), now)
    predicted = actions.predicted(plans, now)
    turn = (start.inv() * goal).as_matrix()
    columns = np.concatenate([turn[..., 0], turn[..., 1]], axis=-1)
    wanted = [start.inv().apply(end - begin), columns] if pose else [columns]
    np.testing.assert_allclose(
        predicted.numpy(), np.concatenate([*wanted, np.ones((50, 1))], axis=1), atol=1e-9
    )
    back = actions.command(actions.planned(predicted, now), now, previous=commands)
    torch.testing.assert_close(back, commands, rtol=0, atol=1e-6)
    flipped = {**now, "tip_turn": -now["tip_turn"]}
    if measured in ("xyzw", "wxyz"):
        torch.testing.assert_close(actions.predicted(plans, flipped), predicted)


def test_signs_of_quaternions_in_the_data_do_not_matter_and_commands_keep_theirs() -> None:
    actions = RelativeActions(robot("wxyz", "xyzw"), [said("wxyz", "xyzw")])
    turns = Rotation.from_rotvec(np.radians(np.linspace(170, 190, 21))[:, None] * [0, 0, 1])
    told = torch.from_numpy(as_written(turns, "wxyz"))
    commands = torch.cat([told, torch.zeros(21, 1).double()], dim=1)
    now = {"tip_turn": torch.from_numpy(as_written(turns, "xyzw"))}
    one = actions.averageable(commands)
    torch.testing.assert_close(actions.averageable(-commands)[:, :6], one[:, :6])
    last = -commands[:1]
    for tick in range(21):
        here = {name: value[tick : tick + 1] for name, value in now.items()}
        command = actions.command(one[tick : tick + 1], here, last)
        assert (command[:, :4] * last[:, :4]).sum() > 0.9
        last = command
    first = actions.command(one[:1], {"tip_turn": -now["tip_turn"][:1]})
    torch.testing.assert_close(first[:, :4], -commands[:1, :4])


@pytest.mark.parametrize(
    ("form", "values", "near", "wanted"),
    [
        ("xyzw", [0, 0, 0, -1.0], [0, 0, 0.1, 0.9], [0, 0, 0, 1.0]),
        ("rpy", [0, 0, -3.1], [0, 0.2, 3.1], [0, 0, 2 * math.pi - 3.1]),
        ("rotvec", [0, 0, -3.1], [0.1, 0, 3.1], [0, 0, 2 * math.pi - 3.1]),
        ("rotvec", [0.0, 0, 0], [1.0, 0, 0], [0.0, 0, 0]),
    ],
)
def test_of_equal_rotations_the_nearest(
    form: str, values: list[float], near: list[float], wanted: list[float]
) -> None:
    found = nearest(torch.tensor(values), torch.tensor(near), form)
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_chunks_are_averaged_across_the_wrap(
    engine: EngineName, config: PolicyConfig, embedding: np.ndarray
) -> None:
    """The robot turns about z by 4 degrees a tick through 180; the network always predicts 2, 4 and 6."""
    spec = robot("rpy", "rotvec")
    limited = replace(spec.actions[0], low=-math.pi, high=math.pi)
    spec = replace(spec, actions=(limited, spec.actions[1]))
    policy = Policy(spec, replace(config, chunk=CHUNK, relative=(said("rpy", "rotvec"),)))
    ahead = Rotation.from_rotvec(np.radians([[0, 0, 2], [0, 0, 4], [0, 0, 6]]))
    raw = np.concatenate([as_written(ahead, "6d-columns"), np.full((CHUNK, 1), 9.0)], axis=1)
    with torch.no_grad():
        policy.action_head.mlp.out.weight.zero_()
        policy.action_head.mlp.out.bias.copy_(torch.from_numpy(2.0 * raw.ravel()))  # any length
    runner = PolicyRunner(policy, engine=engine, execution="ensemble:0")
    runner.reset("turn", embedding=embedding)
    for tick, angle in enumerate((174, 178, -178, -174)):
        turn = np.array([0, 0, math.radians(angle)], np.float32)
        seen = {"tip_pos": np.zeros(3, np.float32), "tip_turn": turn}
        saved = snapshot_from_bytes(snapshot_to_bytes(runner.snapshot()))
        action = runner.step(seen)
        # What the chunks so far say for this tick: 2, 4 - 4 and 6 - 8 degrees from here.
        expected = angle + (2, 1, 0, 0)[tick]
        difference = math.degrees(action.part("tip")[2]) - expected
        assert abs((difference + 180) % 360 - 180) < 0.05
        assert np.abs(action.part("tip")[:2]).max() < 1e-3
        assert abs(action.part("tip")[2]) <= math.pi
        runner.restore(saved)
        assert np.array_equal(runner.step(seen).values, action.values)


def test_checkpoint_sizes_and_limits(config: PolicyConfig) -> None:
    spec = robot("xyzw", "xyzw", pose=True)
    near = replace(spec.actions[0], low=-0.6, high=0.6)
    spec = replace(spec, actions=(near, spec.actions[1]))
    policy = Policy(spec, replace(config, relative=(said("xyzw", "xyzw", pose=True),))).eval()
    assert policy.plan_size == 10
    measured = {
        "tip_pos": torch.tensor([[[0.5, 0.0, 0.0]]]),
        "tip_turn": torch.tensor([[[0.0, 0.0, 0.0, 1.0]]]),
    }
    raw = torch.tensor([[[0.5, 0.1, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 9.0]]])
    command = policy.decode(raw, measured)[0, 0, :7]
    torch.testing.assert_close(command, torch.tensor([0.6, 0.1, 0.0, 0.0, 0.0, 0.0, 0.6]))
    planned = policy.decode_chunk(raw, measured)
    assert policy.loss(raw, planned, measured)["tip"] < 1e-6, "plans have no limits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tip:quat=tip_turn:xyzw",
            "--relative tip:quat=.*'quat' is no way to write a rotation; give xyzw",
        ),
        ("tip:xyzw=tip_turn", "say for both how they are written"),
        ("tip=tip_turn:xyzw", "say for both how they are written"),
        ("tip:pose-xyzw=tip_turn:xyzw", "both as rotations or both as poses"),
        ("tip:rotvec=tip_turn:xyzw", "tip has 4 values, and rotvec 3; give another form"),
        (
            "tip:xyzw=tip_turn:rotvec",
            "rotvec has 3, and tip_turn has 4; name .* tip:xyzw=tip_turn\\[0:3\\]:",
        ),
        ("tip:xyzw=tip_pos+tip_turn[0:4]:xyzw", "values are in m, but orientations"),
        ("tip:xyzw=tip_turn+quiet:xyzw", "'quiet' is no proprioception here"),
        ("closed:rotvec=tip_pos:rotvec", "closed is binary"),
        ("tip=tip_turn", "looks like a rotation.* such as tip:rotvec=tip_turn:xyzw \\(forms: xyzw"),
    ],
)
def test_wrong_declarations_are_told(text: str, message: str) -> None:
    spec = robot("xyzw", "xyzw")
    tip = ProprioceptionSpec("tip_pos", ("x (m)", "y (m)", "z (m)"))
    turn = ProprioceptionSpec("tip_turn", ("qx", "qy", "qz", "qw"))
    spec = replace(spec, proprioception=(tip, turn))
    with pytest.raises(UserError, match=message) as told:
        RelativeActions(spec, [text])
    assert "\n" not in str(told.value)


def test_rotations_are_for_relative_alone() -> None:
    with pytest.raises(UserError, match="absolute takes displacements of positions"):
        RelativeActions(robot("xyzw", "xyzw"), [], [said("xyzw", "xyzw")])
