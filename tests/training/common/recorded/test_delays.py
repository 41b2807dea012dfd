"""Trainings with delays: what is learned for them, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.datasets import EpisodeWriter, WindowDataset, dataset_statistics
from ttm.datasets.windows import Chunks, policy_inputs
from ttm.policy import (
    PRESETS,
    ActionPart,
    Policy,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
    load_checkpoint,
)
from ttm.policy.cores.registry import sized_like, with_options
from ttm.training.batches import BatchSource, Delays, WholeEpisodes
from ttm.training.data import open_all, split
from ttm.training.losses import TrainingBatch, cloning_losses
from ttm.training.network import with_chosen_parts
from ttm.training.options import TrainOptions
from ttm.training.train import TrainCommand


def asked(**options: Any) -> TrainOptions:
    return TrainOptions(data=(), out=Path(), **options)


SPEC = PolicySpec(
    "point",
    (),
    (ProprioceptionSpec("position", ("x (m)",)),),
    (ActionPart("step", 1, "m"), ActionPart("gripper", 1, "", kind="binary")),
    rate_hz=5.0,
)
TICK_S = 0.2
SPEC_OF_WAVE = replace(
    SPEC,
    proprioception=(ProprioceptionSpec("phase", ("sine", "cosine")),),
    actions=(ActionPart("value", 1, "m"),),
)


@pytest.mark.parametrize(
    ("ticks", "step", "gripper", "main"),
    [
        (0.0, [0, 10], [0, 0], [0, 1]),
        (0.3, [3, 13], [0, 0], [0, 1]),
        (0.7, [7, 17], [0, 1], [1, 2]),
        (1.0, [10, 20], [0, 1], [1, 2]),
        (2.0, [20, 30], [1, 1], [2, 3]),
    ],
)
def test_a_command_is_what_was_demonstrated_while_it_is_in_force(
    ticks: float, step: list[float], gripper: list[float], main: list[int]
) -> None:
    delays = Delays(SPEC, 2 * TICK_S)
    count = 2 + delays.ticks_ahead  # for the two actions of a chunk
    demonstrated = torch.stack([10.0 * torch.arange(count), torch.arange(count) >= 2.0], dim=1)
    coming = Chunks(
        demonstrated[None, None],
        torch.arange(count)[None, None] < 1,
        torch.arange(count)[None, None],
    )
    made = delays.in_force(coming, torch.tensor([ticks * TICK_S]), 2)
    assert torch.allclose(made.actions[0, 0], torch.tensor([step, gripper]).T.float(), atol=1e-4)
    assert made.dataset_tick[0, 0].tolist() == main
    assert made.inside[0, 0].tolist() == [True, False]


def batch(episodes: Path, longest_delay_s: float) -> TrainingBatch:
    """Return four whole episodes of five ticks."""
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 5, pad="none")
    source = BatchSource(
        windows, 4, 0, memory=WholeEpisodes(), chunk=2, longest_delay_s=longest_delay_s
    )
    return next(iter(source.sample(1)))


def test_each_window_has_a_delay_of_its_own_and_all_else_is_as_without(episodes: Path) -> None:
    plain, delayed = batch(episodes, 0.0), batch(episodes, 0.4)
    told = delayed.inputs.delay_s
    assert plain.inputs.delay_s is None
    assert told is not None
    assert len(told[:, 0].unique()) == 4
    assert (told >= 0).all()
    assert (told <= 0.4).all()
    assert torch.equal(told, told[:, :1].expand(4, 5))
    assert not torch.equal(plain.actions, delayed.actions)
    for field in fields(TrainingBatch):
        mine, theirs = getattr(plain, field.name), getattr(delayed, field.name)
        if field.name not in ("actions", "weights") and isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), field.name
    assert torch.equal(plain.inputs.previous_action, delayed.inputs.previous_action)


def test_a_policy_that_is_told_of_delays_begins_as_it_was(spec: PolicySpec, episodes: Path) -> None:
    torch.manual_seed(0)
    policy = Policy(spec, replace(PRESETS["tiny"], chunk=2))
    assert with_chosen_parts(policy, asked(delay=0.0)) is policy
    told = with_chosen_parts(policy, asked(delay=0.4))
    delayed = batch(episodes, 0.4)
    before, _ = cloning_losses(policy, delayed)
    begun, _ = cloning_losses(told, delayed)
    assert torch.equal(before["loss"], begun["loss"])


def test_another_longest_delay_leaves_the_meaning_of_a_delay(
    spec: PolicySpec, episodes: Path
) -> None:
    torch.manual_seed(0)
    policy = Policy(spec, replace(PRESETS["tiny"], chunk=2, longest_delay_s=0.4))
    assert policy.delay_code is not None
    torch.nn.init.normal_(policy.delay_code.mlp.out.weight)
    delayed = batch(episodes, 0.2)
    before = cloning_losses(policy, delayed)[0]["loss"]
    prompt = replace(delayed, inputs=replace(delayed.inputs, delay_s=None))
    assert not torch.allclose(before, cloning_losses(policy, prompt)[0]["loss"])
    shorter = with_chosen_parts(policy, asked(delay=0.2))
    assert shorter.config.longest_delay_s == 0.2
    torch.testing.assert_close(cloning_losses(shorter, delayed)[0]["loss"], before)
    untold = with_chosen_parts(policy, asked(delay=0.0))
    assert untold.delay_code is None


def test_a_policy_learns_to_act_ahead_by_the_delay_that_it_is_told(tmp_path: Path) -> None:
    """The action follows a wave, whose phase is seen: half a period is 3.5 ticks."""
    phases = 0.9 * np.arange(42)
    for seed in range(2):
        with EpisodeWriter(tmp_path / f"{seed}.hdf5", SPEC_OF_WAVE) as writer:
            for tick, phase in enumerate(phases + seed):
                seen = {"phase": np.array([np.sin(phase), np.cos(phase)], np.float32)}
                writer.append(seen, np.sin([phase]), timestamp_s=TICK_S * tick)
            writer.finish(instruction="follow", seed=seed, embedding=np.zeros(384, np.float32))
    data = open_all([str(tmp_path)])[0]
    torch.manual_seed(0)
    core = with_options(sized_like("none", PRESETS["tiny"].core), ("num_layers=0",))
    policy = Policy(
        SPEC_OF_WAVE, replace(PRESETS["tiny"], width=32, core=core, longest_delay_s=2 * TICK_S)
    )
    policy.normalizer.set_statistics(dataset_statistics(data))
    windows = WindowDataset(data, 4, pad="none")
    source = BatchSource(windows, 16, 0, longest_delay_s=2 * TICK_S)
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    for one in islice(source.batches(0), 160):
        optimizer.zero_grad()
        cloning_losses(policy, one)[0]["loss"].backward()
        optimizer.step()

    episode = WindowDataset(data, 40, pad="none").gather([0])
    for ticks in (0, 1, 2):
        told = replace(policy_inputs(episode), delay_s=torch.full((1, 40), TICK_S * ticks))
        with torch.no_grad():
            made = policy.eval().decode(policy(told)[0])[0, :, 0]
        errors = [
            (made - torch.sin(torch.tensor(phases[k : k + 40]))).abs().mean() for k in range(3)
        ]
        assert errors[ticks] < 0.25
        assert all(errors[k] > 0.35 for k in range(3) if k != ticks)


def test_the_checkpoint_says_what_delays_it_was_trained_for(
    command: Callable[..., TrainCommand],
) -> None:
    training = command(delay=0.4)
    assert training.run() == 0
    policy, _ = load_checkpoint(training.out / "last.safetensors")
    assert policy.config.longest_delay_s == 0.4
    with pytest.raises(UserError, match=r"--delay is 11\.0; give 10 or less"):
        command(delay=11.0).check()
