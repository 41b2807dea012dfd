"""Parts of the action that the network predicts relative to what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

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
from ttm.policy.references import Reference, Source
from ttm.policy.relative import RelativeActions
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
    raw = policy.normalizer.normalize_actions(relative)
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
    raw = policy.normalizer.normalize_actions(planned)
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
    with pytest.raises(UserError, match="name lift 2 times"):
        RelativeActions(spec, ["lift=height", "lift=state[0:1]"])
    with pytest.raises(UserError, match="--relative and absolute name lift 2 times"):
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
    spec: PolicySpec,
    part: str,
    unit: str,
    vector: str,
    labels: tuple[str, ...],
    is_rotation: bool,
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
