"""Training on actions relative to what is measured: statistics, resume, and what cannot be mixed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from ttm.datasets import EpisodeWriter, WindowDataset, dataset_statistics, open_dataset
from ttm.policy import (
    PRESETS,
    ActionPart,
    Policy,
    PolicyRunner,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
    load_checkpoint,
)
from ttm.training.batches import BatchSource, WholeEpisodes
from ttm.training.data import predicted_statistics
from ttm.training.network import require_same_form, with_chosen_parts
from ttm.training.options import TrainOptions
from ttm.training.train import TrainCommand


def asked(**options: Any) -> TrainOptions:
    return TrainOptions(data=(), out=Path(), **options)


Make = Callable[..., TrainCommand]
CHUNK = 2
RELATIVE = ("arm=joints",)
TURNING = ("tip:rpy=tip_quat:xyzw",)


@pytest.fixture(scope="module")
def reaching(tmp_path_factory: pytest.TempPathFactory, spec: PolicySpec) -> Path:
    """Three episodes of an arm that is far away and told to go 0.01 and 0.02 rad further."""
    parts = (ActionPart("arm", 2, "rad"), *spec.actions[1:])
    spec, folder = replace(spec, actions=parts, cameras=()), tmp_path_factory.mktemp("reaching")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        with EpisodeWriter(folder / f"episode_{seed}.hdf5", spec) as writer:
            for tick in range(5):
                joints = (100 + 10 * rng.normal(size=2)).astype(np.float32)
                action = np.r_[joints + np.array([0.01, 0.02]), float(tick > 2)]
                writer.append({"joints": joints}, action, timestamp_s=tick / spec.rate_hz)
            split = "valid" if seed == 2 else "train"
            writer.finish(instruction="reach", embedding=np.ones(384), split=split)
    return folder


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory, spec: PolicySpec) -> Path:
    """Three episodes of a tip that is within 3 degrees of a half turn, and told to turn on by 2.

    What it measures is a quaternion of any sign; the command is roll, pitch and yaw.
    """
    vectors = (ProprioceptionSpec("tip_quat", ("qx", "qy", "qz", "qw")),)
    parts = (ActionPart("tip", 3, "rad", low=-np.pi, high=np.pi), *spec.actions[1:])
    spec = replace(spec, actions=parts, cameras=(), proprioception=vectors)
    folder = tmp_path_factory.mktemp("turning")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        with EpisodeWriter(folder / f"episode_{seed}.hdf5", spec) as writer:
            for tick in range(8):
                here = np.pi + np.radians(rng.uniform(-3, 3))
                quat = Rotation.from_rotvec([0, 0, here]).as_quat() * rng.choice([-1, 1])
                yaw = (here + np.radians(2) + np.pi) % (2 * np.pi) - np.pi
                writer.append(
                    {"tip_quat": quat.astype(np.float32)},
                    np.array([0, 0, yaw, float(tick > 4)], np.float32),
                    timestamp_s=tick / spec.rate_hz,
                )
            split = "valid" if seed == 2 else "train"
            writer.finish(instruction="turn", embedding=np.ones(384), split=split)
    return folder


@pytest.fixture(scope="module")
def policy(reaching: Path) -> Policy:
    """A policy whose statistics are those of the data, before any training."""
    spec = open_dataset(reaching).spec
    policy = Policy(spec, replace(PRESETS["tiny"], chunk=CHUNK, relative=RELATIVE))
    episodes = open_dataset(reaching).filter("train")
    policy.normalizer.set_statistics(
        dataset_statistics(episodes), predicted_statistics(policy, episodes)
    )
    return policy


def test_statistics_are_of_whole_chunks_relative_to_their_first_tick(
    policy: Policy, reaching: Path
) -> None:
    found = []
    for episode in open_dataset(reaching).filter("train"):
        joints = episode.proprioception("joints")
        found += [episode.actions[:, :2] - joints, episode.actions[1:, :2] - joints[:-1]]
    scaling = policy.normalizer.actions
    for mine, theirs in ((scaling.mean, np.mean), (scaling.std, np.std)):
        wanted = theirs(np.concatenate(found).astype(np.float64), axis=0)
        np.testing.assert_allclose(mine[:2].numpy(), wanted, rtol=1e-4)
    assert scaling.mean[2] == 0, "a binary part is as it was"
    assert policy.normalizer.executed is not None
    assert policy.normalizer.executed.mean[:2].numpy() == pytest.approx(100, abs=15)


def test_statistics_are_also_of_what_is_demonstrated_up_to_the_longest_delay_later(
    policy: Policy, reaching: Path
) -> None:
    episodes = open_dataset(reaching).filter("train")
    late = replace(policy.config, longest_delay_s=2 * policy.spec.control_dt_s)
    longer = replace(policy.config, chunk=CHUNK + 2)
    one, other, prompt = (
        predicted_statistics(Policy(policy.spec, config), episodes)
        for config in (late, longer, policy.config)
    )
    assert one is not None
    assert other is not None
    assert prompt is not None
    assert np.array_equal([one.mean, one.std], [other.mean, other.std])
    assert not np.array_equal(one.std, prompt.std)


def test_resume_is_exact_and_leaves_a_policy_that_goes_on_from_where_it_is(
    command: Make, reaching: Path, interrupted: Callable[[TrainCommand, int], None], tmp_path: Path
) -> None:
    options = {"data": (str(reaching),), "relative": RELATIVE, "chunk": CHUNK}
    unbroken, broken = command(**options, out=tmp_path / "unbroken"), command(**options)
    unbroken.run()
    interrupted(broken, 1)
    with pytest.raises(UserError, match=r"--relative \(\['arm=joints'\] then, \[\] now\)"):
        replace(broken, resume=True, relative=()).run()
    assert replace(broken, resume=True).run() == 0
    one, two = (load_checkpoint(each.out / "last.safetensors")[0] for each in (unbroken, broken))
    mine = two.state_dict()
    assert all(torch.equal(value, mine[name]) for name, value in one.state_dict().items())
    assert one.config.relative == RELATIVE
    runner = PolicyRunner(one, engine="torch")
    runner.reset("reach")
    for joints in ([500.0, -500.0], [0.0, 70.0]):
        action = runner.step({"joints": np.array(joints, np.float32)})
        assert action.part("arm") == pytest.approx(joints, abs=60)


def test_fine_tuning_keeps_the_relative_parts(policy: Policy) -> None:
    assert with_chosen_parts(policy, asked(chunk=1)).config.relative == RELATIVE
    for same in ((), RELATIVE, ("arm=joints[0:2]",)):
        require_same_form(policy, asked(relative=same), "last.safetensors")
    absolute = Policy(policy.spec, PRESETS["tiny"])
    with pytest.raises(UserError, match=r"say arm=joints, but last.* has none; leave them out"):
        require_same_form(absolute, asked(relative=RELATIVE), "last.safetensors")


def test_positions_are_learned_of_the_ticks_at_which_they_are_commanded(reaching: Path) -> None:
    episodes = open_dataset(reaching).filter("train")
    config = replace(PRESETS["tiny"], chunk=CHUNK, absolute=RELATIVE)
    policy = Policy(episodes.spec, config)
    windows = WindowDataset(episodes, 5, pad="none")
    source = BatchSource(windows, 2, 0, memory=WholeEpisodes(), chunk=CHUNK, form=policy.relative)
    batch = next(iter(source.sample(1)))
    plain = next(iter(BatchSource(windows, 2, 0, memory=WholeEpisodes(), chunk=CHUNK).sample(1)))
    joints = batch.inputs.proprioception["joints"]
    for ahead in range(CHUNK):
        moved = batch.actions[:, : 5 - ahead, ahead] - plain.actions[:, : 5 - ahead, ahead]
        torch.testing.assert_close(moved[..., :2], joints[:, ahead:])
        assert not moved[..., 2].any(), "the gripper"
    found = predicted_statistics(policy, episodes)
    assert found is not None
    inside = batch.actions[batch.tick_weights > 0].double()
    np.testing.assert_allclose(found.mean, inside.mean(dim=0).numpy(), rtol=1e-5)
    np.testing.assert_allclose(found.std, inside.std(dim=0, correction=0).numpy(), rtol=1e-3)


def test_a_spec_that_does_not_fit_is_told_before_training(command: Make, episodes: Path) -> None:
    with pytest.raises(UserError, match=r"arm is in m, but 'shoulder .rad.' in rad"):
        command(relative=RELATIVE).run()
    with pytest.raises(UserError, match="name arm more than once"):
        command(relative=RELATIVE * 2).run()


def test_rotations_are_learned_across_a_half_turn(
    command: Make, turning: Path, tmp_path: Path
) -> None:
    """As angles they jump by 360 degrees; as turns from where the tip is they are all alike."""
    errors = {}
    for name, relative in (("turns", TURNING), ("angles", ())):
        out = tmp_path / name
        options = {"data": (str(turning),), "relative": relative, "chunk": CHUNK, "delay": 0.3}
        assert command(**options, out=out).run() == 0
        errors[name] = json.loads((out / "result.json").read_text())["validation"]["policy"][
            "parts"
        ]
    assert errors["turns"]["tip"] < np.radians(2)
    assert errors["angles"]["tip"] > np.radians(30)
    trained, _ = load_checkpoint(tmp_path / "turns" / "last.safetensors")
    assert trained.config.relative == TURNING
    runner = PolicyRunner(trained, engine="torch", execution="ensemble:0.01")
    runner.reset("turn")
    for degrees in (176, 180, -176):
        quat = Rotation.from_rotvec([0, 0, np.radians(degrees)]).as_quat().astype(np.float32)
        tip = Rotation.from_euler("xyz", runner.step({"tip_quat": quat}).part("tip"))
        turned = Rotation.from_quat(quat).inv() * tip
        assert turned.magnitude() < np.radians(10)


def test_targets_with_delays_are_rotations(turning: Path) -> None:
    episodes = open_dataset(turning).filter("train")
    policy = Policy(
        episodes.spec, replace(PRESETS["tiny"], chunk=CHUNK, relative=TURNING, longest_delay_s=0.3)
    )
    windows = WindowDataset(episodes, 8, pad="none")
    settings = {"memory": WholeEpisodes(), "chunk": CHUNK, "longest_delay_s": 0.3}
    source = BatchSource(windows, 2, 0, form=policy.relative, **settings)  # type: ignore[arg-type]
    batch = next(iter(source.sample(1)))
    assert batch.actions.shape == (2, 8, CHUNK, 7)
    columns = batch.actions[..., :6].unflatten(-1, (2, 3))
    eye = torch.eye(2).expand(2, 8, CHUNK, 2, 2)
    torch.testing.assert_close(columns @ columns.mT, eye, atol=1e-5, rtol=0)
    assert (columns[..., 0, 0] < -0.99).all(), "a mean of 179 and -179 degrees is none of them"
    found = predicted_statistics(policy, episodes)
    assert found is not None
    assert len(set(found.std[:6].tolist())) == 1, "turns about all axes count alike"


def test_what_is_no_rotation_is_told_before_training(command: Make, turning: Path) -> None:
    wrong = "tip:rotvec=tip_quat[0:3]:rotvec"
    episodes = open_dataset(turning).filter("train")
    policy = Policy(episodes.spec, replace(PRESETS["tiny"], relative=(wrong,)))
    assert predicted_statistics(policy, episodes) is not None, "any three numbers may be one"
    policy.relative.require_rotations(torch.zeros(4, 4), {"tip_quat": torch.eye(4)}, "here")
    policy = Policy(episodes.spec, replace(PRESETS["tiny"], relative=TURNING))
    for commands, quat, message in (
        (180.0, 1.0, "here: tip is not written as rpy at tick 1, since it is beyond two turns"),
        (0.0, 2.0, "here: what measures tip is not written as xyzw at tick 1, since its length"),
    ):
        told, seen = torch.zeros(4, 4), torch.eye(4)
        told[1], seen[1] = commands, quat * seen[1]
        with pytest.raises(UserError, match=message):
            policy.relative.require_rotations(told, {"tip_quat": seen}, "here")
