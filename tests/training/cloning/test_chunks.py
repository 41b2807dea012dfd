"""Chunks of actions in training: their targets, the mask at an episode's end, and the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.datasets import WindowDataset
from ttm.policy import PRESETS, Policy, PolicyRunner, PolicySpec, load_checkpoint
from ttm.training.batches import BatchSource, WholeEpisodes
from ttm.training.data import open_all, split
from ttm.training.losses import TrainingBatch, cloning_losses
from ttm.training.network import with_chosen_parts
from ttm.training.options import TrainOptions
from ttm.training.train import TrainCommand


def asked(**options: Any) -> TrainOptions:
    return TrainOptions(data=(), out=Path(), **options)


Make = Callable[..., TrainCommand]
CHUNK = 3


@pytest.fixture
def batch(episodes: Path) -> TrainingBatch:
    """Return four whole episodes of five ticks."""
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 5, pad="none")
    source = BatchSource(windows, 4, 0, memory=WholeEpisodes(), chunk=CHUNK)
    return next(iter(source.sample(1)))


@pytest.fixture
def policy(spec: PolicySpec) -> Policy:
    torch.manual_seed(0)
    return Policy(spec, replace(PRESETS["tiny"], chunk=CHUNK))


def test_a_tick_is_asked_for_its_action_and_those_of_the_next_ticks(batch: TrainingBatch) -> None:
    assert batch.actions.shape == batch.weights.shape == (4, 5, CHUNK, 3)
    for ahead in range(1, CHUNK):
        for of_chunk in (batch.actions, batch.weights):
            assert torch.equal(of_chunk[:, :-ahead, ahead], of_chunk[:, ahead:, 0])
    inside = torch.arange(5)[:, None] + torch.arange(CHUNK) < 5
    assert torch.equal(batch.tick_weights, inside.float().expand(4, -1, -1))


def test_windows_look_beyond_their_end_but_not_beyond_the_episodes(episodes: Path) -> None:
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 2, pad="none")
    made = windows.chunks(windows.gather([0, 3]), CHUNK)  # ticks 0 and 1, 3 and 4 of an episode
    actions = torch.from_numpy(windows.episodes[0].actions)
    assert torch.equal(made.actions[0, 1], actions[1:4])
    assert made.inside.tolist()[0] == [[True] * 3] * 2
    assert made.inside.tolist()[1] == [[True, True, False], [True, False, False]]


def test_what_lies_beyond_the_end_of_the_episode_does_not_count(
    policy: Policy, batch: TrainingBatch
) -> None:
    with torch.no_grad():
        losses, _ = cloning_losses(policy, batch)
        beyond = torch.where(batch.tick_weights[..., None] > 0, batch.actions, 9.0)
        assert not torch.equal(beyond, batch.actions)
        same, _ = cloning_losses(policy, replace(batch, actions=beyond))
        beyond[:, 0, 2] += 1  # the action of the third tick, as the first tick foresees it
        other, _ = cloning_losses(policy, replace(batch, actions=beyond))
    assert losses == same
    assert all(losses[name] != other[name] for name in ("arm", "gripper"))


def test_each_action_of_a_chunk_is_learned(policy: Policy, batch: TrainingBatch) -> None:
    optimizer = torch.optim.Adam(policy.action_head.parameters(), lr=1e-2)
    with torch.no_grad():
        outputs, _ = policy.core_outputs(policy.core_inputs(batch.inputs)[0])
    for _ in range(150):
        raw = policy.action_head(outputs)
        losses = policy.loss(raw, batch.actions, valid=batch.tick_weights > 0)
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    error = (policy.decode_chunk(raw) - batch.actions).abs().amax(dim=-1)
    assert error[batch.tick_weights > 0].max() < 0.2


def test_a_training_by_chunks_resumes_exactly_and_leaves_a_policy_that_runs(
    command: Make, interrupted: Callable[[TrainCommand, int], None], tmp_path: Path
) -> None:
    unbroken, broken = command(chunk=CHUNK, out=tmp_path / "unbroken"), command(chunk=CHUNK)
    unbroken.run()
    interrupted(broken, 1)
    assert replace(broken, resume=True).run() == 0
    one, two = (load_checkpoint(each.out / "last.safetensors")[0] for each in (unbroken, broken))
    assert one.config.chunk == CHUNK
    mine = two.state_dict()
    assert all(torch.equal(value, mine[name]) for name, value in one.state_dict().items())
    runner = PolicyRunner(one, engine="torch", execution="ensemble:0.01")
    runner.reset("do 0")
    seen = {name: np.zeros((16, 16, 3), np.uint8) for name in ("head", "wrist")}
    assert np.isfinite(runner.step({**seen, "joints": np.zeros(2, np.float32)}).values).all()


def test_fine_tuning_by_another_chunk_has_a_new_action_head_and_keeps_the_rest(
    policy: Policy,
) -> None:
    assert with_chosen_parts(policy, asked(chunk=CHUNK)) is policy
    made = with_chosen_parts(policy, asked(chunk=1))
    mine, theirs = policy.state_dict(), made.state_dict()
    kept = {name for name in mine if torch.equal(mine[name], theirs.get(name, torch.empty(0)))}
    assert {name for name in mine if not name.startswith("action_head.")} <= kept
    assert not any(name.startswith("action_head.mlp") and "weight" in name for name in kept)
    assert made.config == replace(policy.config, chunk=1)
