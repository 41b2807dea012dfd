"""Training on actions relative to what is measured: statistics, resume, and what cannot be mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.datasets.episode_dataset import open_dataset
from ttm.datasets.episode_writer import EpisodeWriter
from ttm.datasets.show.report import show_dataset
from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.network.presets import PRESETS
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.run.runner import PolicyRunner
from ttm.policy.spec import ActionPart, PolicySpec
from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.command import TrainCommand
from ttm.training.cloning.memory_start import WholeEpisodes
from ttm.training.cloning.network_choice import require_same_form, with_chosen_parts
from ttm.training.cloning.predicted_statistics import predicted_statistics

Make = Callable[..., TrainCommand]
CHUNK = 2
RELATIVE = ("arm=joints",)


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
    assert with_chosen_parts(policy, "auto", (), chunk=1).config.relative == RELATIVE
    for same in ((), RELATIVE, ("arm=joints[0:2]",)):
        require_same_form(policy, same, (), "last.safetensors")
    absolute = Policy(policy.spec, PRESETS["tiny"])
    with pytest.raises(UserError, match=r"say arm=joints, but last.* with none; leave them out"):
        require_same_form(absolute, RELATIVE, (), "last.safetensors")


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


def test_data_show_names_the_option(reaching: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_dataset(str(reaching))
    printed = capsys.readouterr().out
    assert "arm stays close to joints: the difference spreads" in printed
    assert printed.count("ttm train --relative") == 1
    assert "--relative arm=joints\n" in printed


def test_a_spec_that_does_not_fit_is_told_before_training(command: Make, episodes: Path) -> None:
    with pytest.raises(UserError, match=r"arm is in m, but 'shoulder .rad.' in rad"):
        command(relative=RELATIVE).run()
    with pytest.raises(UserError, match="name arm 2 times"):
        command(relative=RELATIVE * 2).run()
