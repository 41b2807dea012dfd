"""`ttm study memory-start`, all of it at the smallest size, and how it joins episodes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.datasets.windows import WindowDataset
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError
from ttm.policy.policy import Policy
from ttm.training import cli
from ttm.training.data import open_all, policy_inputs, split
from ttm.training.study.memory_start import (
    TRAINED,
    Material,
    MemoryStartOptions,
    StudyMemoryStartCommand,
    fresh_policy,
    lengthen,
)


@pytest.fixture
def checkpoint(episodes: Path, tmp_path: Path) -> Path:
    words = ["train", "--data", str(episodes), "--out", str(tmp_path / "run"), "--steps", "1"]
    words += ["--window", "2", "--batch-size", "2", "--threads", "1", "--validations", "1"]
    words += ["--core-options", "num_layers=1"]
    assert cli.main(words) == 0
    return tmp_path / "run" / "last.safetensors"


def test_the_study_measures_every_way_on_both_kinds_of_episodes(
    episodes: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    words = ["study", "memory-start", "--data", str(episodes), "--out", str(out)]
    words += ["--checkpoint", str(checkpoint), "--seeds", "1", "--steps", "1", "--window", "2"]
    words += ["--burn-in", "2", "--batch-size", "2", "--ticks", "130", "--chains", "2"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "1 steps, 1 seeds: mean ± deviation over seeds" in printed
    found = json.loads((out / "figures.json").read_text())
    ways = itertools.product(("short", "long"), ("zero", "carry", "burn-in"))
    assert found.keys() == {f"{kind}, {memory}" for kind, memory in ways}
    for entry in found.values():
        assert len(entry["error_in_use"]) == 1
        assert 0 < entry["old_memory"][0] < 1
        assert entry["same"].keys() == entry["changing"].keys()
    assert len(list(out.glob("*.png"))) == 4


def test_long_episodes_hold_each_episode_once(episodes: Path) -> None:
    recorded = split(open_all([str(episodes)]), "train")
    for episode in recorded:
        assert episode.num_samples == 5
    made = lengthen(recorded, np.random.default_rng(0))
    parts = [part for episode in made for part in episode.parts]  # type: ignore[attr-defined]
    assert sorted(part.name + str(part.path) for part in parts) == sorted(
        episode.name + str(episode.path) for episode in recorded
    )
    assert len({episode.instruction for episode in made}) == len(made)
    assert made[0].actions.shape == (made[0].num_samples, recorded.spec.action_size)


def test_tokens_stand_in_for_frames(episodes: Path, checkpoint: Path) -> None:
    """The policy that is trained gives, from tokens, what the checkpoint's vision gives from frames."""
    trained = load_checkpoint(checkpoint)[0]
    material = Material([str(episodes)], trained)
    options = MemoryStartOptions(data=(str(episodes),), seeds=1)
    policy: Policy = fresh_policy(options, trained, seed=0).eval()
    frames = WindowDataset(material.held_out, 3, pad="none").gather([0])
    tokens = material.windows(material.held_out, 3, "none").gather([0])
    with torch.no_grad():
        torch.testing.assert_close(
            policy.encode(policy_inputs(tokens)), trained.encode(policy_inputs(frames))
        )
    for name, parameter in policy.named_parameters():
        assert parameter.requires_grad == name.startswith(TRAINED)


def test_frames_are_resized_to_the_checkpoints_and_another_robot_is_refused(
    checkpoint: Path, large_frames: Path, other_robot: Path
) -> None:
    trained = load_checkpoint(checkpoint)[0]
    material = Material([str(large_frames)], trained)
    assert len(material.held_out) == 1
    with pytest.raises(UserError, match=r"the checkpoint was made for robot small, but .* other"):
        Material([str(other_robot)], trained)


def test_impossible_options_are_told() -> None:
    with pytest.raises(UserError, match="--chains is 0"):
        StudyMemoryStartCommand(data=("d",), chains=0).run()
