"""Actions that are predicted in another form: relative, absolute, and rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from scipy.spatial.transform import Rotation

from ttm.policy import (
    ActionPart,
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicyRunner,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.config import EngineName
from ttm.policy.inputs import ABSOLUTE_FLOOR
from ttm.policy.references import ROTATION_SIZES, Reference, Source
from ttm.policy.relative import RelativeActions, deviation, matrices, nearest, written
from ttm.policy.snapshot import snapshot_from_bytes, snapshot_to_bytes
from ttm.policy.spec import Observation

Make = Callable[[int, int], PolicyInputs]
Observe = Callable[[int], Observation]
RELATIVE = ("arm=state[1:4]", "lift=height")
CHUNK = 3


@pytest.fixture
def spec(spec: PolicySpec) -> PolicySpec:
    """A robot with three joints among the values of a vector, and a lift."""
    labels = ("gripper (m)", "waist (rad)", "elbow (rad)", "wrist_roll.pos (rad)")
    return replace(
        spec,
        proprioception=(
            ProprioceptionSpec("state", labels),
            ProprioceptionSpec("height", ("z (m)",)),
        ),
        actions=(
            ActionPart("arm", 3, "rad", low=-9.0, high=9.0),
            ActionPart("gripper", 1, "", kind="binary", low=0, high=1),
            ActionPart("lift", 1, "unknown"),
            ActionPart("base", 1, "m/s"),
        ),
    )


@dataclass
class Vector:
    mean: np.ndarray
    std: np.ndarray


@pytest.fixture
def policy(spec: PolicySpec, config: PolicyConfig) -> Policy:
    policy = Policy(spec, replace(config, chunk=CHUNK, relative=RELATIVE)).eval()
    robots = Vector(np.full(6, 2.0), np.full(6, 3.0))
    predicted = Vector(np.full(6, 0.1), np.array([0.2, 0.2, 0.0, 0.2, 0.2, 0.2]))

    @dataclass
    class Statistics:
        actions: Vector
        proprioception: dict[str, Vector]

    vectors = {v.name: Vector(np.zeros(v.size), np.ones(v.size)) for v in spec.proprioception}
    policy.normalizer.set_statistics(Statistics(robots, vectors), predicted)
    return policy


def test_what_the_targets_are_decodes_to_the_actions(policy: Policy, make_inputs: Make) -> None:
    """An identity policy: its loss is that of certain gripper commands, and no other."""
    measured = make_inputs(2, 4).proprioception
    actions = torch.randn(2, 4, CHUNK, 6)
    actions[..., 3] = (actions[..., 3] > 0).float()
    relative = actions.clone()
    relative[..., :3] -= measured["state"][:, :, None, 1:4]
    relative[..., 4:5] -= measured["height"][:, :, None]
    raw = policy.normalizer.actions.normalize(relative)
    raw[..., 3] = 40 * actions[..., 3] - 20  # a logit
    decoded = policy.decode_chunk(raw.flatten(-2), measured)
    torch.testing.assert_close(decoded, actions, rtol=0, atol=1e-5)
    torch.testing.assert_close(policy.decode(raw.flatten(-2), measured), decoded[..., 0, :])
    assert max(policy.loss(raw.flatten(-2), actions, measured).values()) < 1e-5
    measured["height"] += 0.5
    assert policy.loss(raw.flatten(-2), actions, measured)["lift"] > 1


def test_a_chunk_is_relative_to_what_is_measured_at_its_first_tick(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    with torch.no_grad():
        policy.action_head.mlp.out.weight.zero_()
        policy.action_head.mlp.out.bias.copy_(torch.arange(18.0))
    runner = PolicyRunner(policy, engine="torch", execution="receding:2")
    runner.reset("reach", embedding=embedding)
    seen = [observe(tick) for tick in range(3)]
    done = [runner.step(each) for each in seen]
    for tick, (first, ahead) in enumerate(((0, 0), (0, 1), (2, 0))):
        moved = 0.1 + 0.2 * (np.arange(3) + 6 * ahead)
        moved[2] = 0.1 + ABSOLUTE_FLOOR * (2 + 6 * ahead)  # it never moved in the data
        expected = seen[first]["state"][1:] + moved
        np.testing.assert_allclose(done[tick].part("arm"), expected, atol=1e-5)
        lift = seen[first]["height"] + 0.1 + 0.2 * (4 + 6 * ahead)
        np.testing.assert_allclose(done[tick].part("lift"), lift, atol=1e-5)
        assert done[tick].part("base") == pytest.approx(0.1 + 0.2 * (5 + 6 * ahead))
    assert np.array_equal(runner.previous_action, done[-1].values), "in the robot's form"


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_displacements_are_planned_as_positions_and_commanded_from_where_the_robot_is(
    engine: EngineName,
    spec: PolicySpec,
    config: PolicyConfig,
    observe: Observe,
    embedding: np.ndarray,
) -> None:
    """The plan of a chunk is kept; where the robot is counts at the tick that carries it out."""
    parts = (ActionPart("arm", 3, "rad/tick", low=-1.0, high=1.0), *spec.actions[1:])
    spec = replace(spec, actions=parts)
    policy = Policy(
        spec, replace(config, chunk=2, absolute=("arm=state[1:4]",), relative=RELATIVE[1:])
    )
    with torch.no_grad():
        policy.action_head.mlp.out.weight.zero_()
        policy.action_head.mlp.out.bias.copy_(torch.arange(12) / 10)
    runner = PolicyRunner(policy, engine=engine, execution="receding:2")
    runner.reset("reach", embedding=embedding)
    seen = [observe(tick) for tick in range(2)]
    done = [runner.step(seen[0])]
    planned = snapshot_to_bytes(runner.snapshot())
    runner = PolicyRunner(policy, engine=engine, execution="receding:2")
    runner.reset("reach", embedding=embedding)
    runner.restore(snapshot_from_bytes(planned))
    done.append(runner.step(seen[1]))
    for tick in range(2):
        wanted = (np.arange(3) + 6 * tick) / 10 - seen[tick]["state"][1:]
        np.testing.assert_allclose(done[tick].part("arm"), wanted.clip(-1, 1), atol=1e-6)
        assert done[tick].part("lift") == pytest.approx(seen[0]["height"] + 0.4 + 0.6 * tick)
    taken = np.abs([action.part("arm") for action in done])
    assert {True, False} == set((taken == 1).ravel().tolist()), "limits are those of the command"


def test_an_identity_policy_of_positions_commands_the_displacements(
    spec: PolicySpec, config: PolicyConfig, make_inputs: Make
) -> None:
    parts = (ActionPart("arm", 3, "rad/tick", low=-9, high=9), *spec.actions[1:])
    policy = Policy(replace(spec, actions=parts), replace(config, absolute=("arm=state[1:4]",)))
    measured = make_inputs(2, 4).proprioception
    told = torch.randn(2, 4, 1, 6)
    told[..., 3] = (told[..., 3] > 0).float()
    now = {name: values.unsqueeze(-2) for name, values in measured.items()}
    planned = policy.relative.plan(told, now)
    raw = policy.normalizer.actions.normalize(planned)
    raw[..., 3] = 40 * told[..., 3] - 20
    assert max(policy.loss(raw.flatten(-2), planned, measured).values()) < 1e-5
    decoded = policy.decode(raw.flatten(-2), measured)
    torch.testing.assert_close(decoded, told[..., 0, :], rtol=0, atol=1e-5)


def test_limits_are_those_of_the_command(policy: Policy) -> None:
    measured = {"state": torch.tensor([[[0.0, 8.5, -8.5, 0.0]]]), "height": torch.zeros(1, 1, 1)}
    decoded = policy.decode(torch.full((1, 1, 18), 5.0), measured)[0, 0]
    assert decoded[:2].tolist() == [9.0, pytest.approx(-8.5 + 1.1)]


def test_the_previous_action_is_scaled_as_the_robot_commands(policy: Policy) -> None:
    scaled = policy.normalizer.normalize_executed(torch.full((6,), 5.0))
    assert scaled.tolist() == [1, 1, 1, 5, 1, 1]


def test_checkpoints_carry_it_and_are_as_before_without(
    spec: PolicySpec, config: PolicyConfig, policy: Policy, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "relative.safetensors", policy, {})
    loaded, _ = load_checkpoint(tmp_path / "relative.safetensors")
    assert loaded.config == policy.config
    assert torch.equal(loaded.normalizer.executed.std, policy.normalizer.executed.std)
    save_checkpoint(tmp_path / "absolute.safetensors", Policy(spec, config), {})
    with safe_open(tmp_path / "absolute.safetensors", framework="pt") as file:
        for later in ("relative", "absolute", "longest_delay_s"):
            assert later not in file.metadata()["config"]
        assert not [name for name in file.keys() if "executed" in name]  # noqa: SIM118


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm", "give PART=VECTOR"),
        ("arm=state[1]", "give PART=VECTOR"),
        ("leg=state", "'leg' is no part of the action here; there is: arm, gripper, lift, base"),
        ("arm=joints", "'joints' is no proprioception here; there is: state, height"),
        ("arm=state", "arm has 3 values, and state has 4; name those .* arm=state\\[0:3\\]"),
        ("arm=state[2:5]", "and state has 4"),
        ("gripper=height", "gripper is binary"),
        ("arm=state[0:3]", "arm is in rad, but 'gripper \\(m\\)' in m"),
        ("base=height", "base is in m/s, but 'z \\(m\\)' in m"),
    ],
)
def test_what_does_not_fit_the_robot_is_told(spec: PolicySpec, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        RelativeActions(spec, [text])


def test_a_part_has_one_reference(spec: PolicySpec) -> None:
    with pytest.raises(UserError, match="name lift more than once"):
        RelativeActions(spec, ["lift=height", "lift=state[0:1]"])
    with pytest.raises(UserError, match="--relative and absolute name lift more than once"):
        RelativeActions(spec, ["lift=height"], ["lift=height"])


@pytest.mark.parametrize(
    ("part", "unit", "vector", "labels", "is_rotation"),
    [
        ("arm_rotation", "rad", "tip", ("x", "y", "z"), True),
        ("arm", "unknown", "robot0_eef_quat", ("a", "b", "c"), True),
        ("arm", "rad", "state", ("ee.rx (rad)", "ee.ry (rad)", "ee.rz (rad)"), True),
        ("arm", "unknown", "eef_pose", ("a", "b", "c"), True),
        ("arm", "m", "eef_pose", ("a", "b", "c"), False),
        ("arm", "unknown", "robot0_joint_pos", ("a", "wrist_roll.pos", "forearm_roll"), False),
    ],
)
def test_a_difference_of_rotations_is_refused(
    spec: PolicySpec, part: str, unit: str, vector: str, labels: tuple[str, ...], is_rotation: bool
) -> None:
    turning = replace(
        spec,
        proprioception=(ProprioceptionSpec(vector, labels),),
        actions=(ActionPart(part, 3, unit),),
    )
    reference = Reference(part, vector)
    if is_rotation:
        with pytest.raises(UserError, match="looks like a rotation"):
            reference.of(turning)
    else:
        assert reference.of(turning) == Source((vector,), slice(0, 3))


FORMS = tuple(ROTATION_SIZES)


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
        ("tip:pose-xyzw=tip_turn:xyzw", "as rotations or poses"),
        ("tip:rotvec=tip_turn:xyzw", "tip has 4 values, and rotvec 3; give another form"),
        (
            "tip:xyzw=tip_turn:rotvec",
            "rotvec has 3, and tip_turn has 4; name .* tip:xyzw=tip_turn\\[0:3\\]:",
        ),
        ("tip:xyzw=tip_pos+tip_turn[0:4]:xyzw", "values are in m, not in rad"),
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
