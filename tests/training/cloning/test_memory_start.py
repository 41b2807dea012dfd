"""The memory that a training window starts from: zero, carried, or after a burn-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from ttm.datasets import WindowDataset
from ttm.policy import PRESETS, Policy, UserError, load_checkpoint
from ttm.policy.config import VisionConfig
from ttm.training.batches import AfterBurnIn, BatchSource, Carried, FromZero, Pick
from ttm.training.data import open_all, split
from ttm.training.losses import TrainingBatch, cloning_losses
from ttm.training.options import AugmentationConfig, InputDropoutConfig
from ttm.training.run_log import resume_path
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]
Interrupted = Callable[[TrainCommand, int], None]


@pytest.fixture(scope="module")
def windows(episodes: Path) -> WindowDataset:
    """Windows of two ticks, of four episodes of five ticks."""
    return WindowDataset(split(open_all([str(episodes)]), "train"), 2, pad="both")


@pytest.fixture
def policy(windows: WindowDataset) -> Policy:
    torch.manual_seed(0)
    vision = VisionConfig(width_coefficient=0.25, depth_coefficient=0.5, reduction=8, norm="batch")
    policy = Policy(windows.spec, replace(PRESETS["tiny"], width=16, vision=vision))
    with torch.no_grad():  # away from the mean action, so that losses depend on the memory
        policy.action_head.mlp.out.weight.mul_(100)
    return policy


def batches(
    windows: WindowDataset, memory: FromZero, count: int, augment: bool = False
) -> list[TrainingBatch]:
    changes = AugmentationConfig() if augment else None
    source = BatchSource(windows, 2, 1, augmentation=changes, memory=memory)
    return list(islice(source.batches(0), count))


def test_burn_in_has_the_windows_of_zero_and_the_ticks_before_them(windows: WindowDataset) -> None:
    for zero, burned in zip(
        batches(windows, FromZero(), 5), batches(windows, AfterBurnIn(3), 5), strict=True
    ):
        assert (zero.burn_in, burned.burn_in) == (0, 3)
        assert burned.valid.shape == (2, 5)
        assert not burned.valid[:, :3].any()
        window = burned.at_ticks(slice(3, None))
        for mine, theirs in ((window.actions, zero.actions), (window.valid, zero.valid)):
            assert torch.equal(mine, theirs)
        assert torch.equal(window.inputs.images["head"], zero.inputs.images["head"])


def test_what_is_drawn_for_a_window_holds_over_its_burn_in(windows: WindowDataset) -> None:
    felt = torch.zeros(2)
    for batch in batches(windows, AfterBurnIn(3), 20, augment=True):
        sees = batch.inputs.proprioception_valid
        assert sees is not None
        assert torch.equal(sees, sees[:, :1].expand(2, 5))
        felt += sees[:, 0]
        for frames, begins in zip(batch.inputs.images["head"], batch.memory_reset, strict=True):
            assert (
                frames[begins] == frames[begins][:1]
            ).all()  # an episode's first frame, several times
    assert 20 < felt.sum() < 40


def test_the_memory_of_a_burn_in_is_that_of_the_episode_so_far(
    policy: Policy, windows: WindowDataset
) -> None:
    """A long burn-in reaches the first tick; the padding before that has no effect."""
    policy.eval()
    place = torch.tensor([[1, 2, 2]])
    source = BatchSource(windows, 1, 0, dropout=InputDropoutConfig(0, 0))
    burned = source.make(Pick(place), 0, burn_in=4)
    whole = source.make(Pick(torch.tensor([[1, 0, 2]])), 0, burn_in=0)
    with torch.no_grad():
        _, before = policy(whole.inputs)
        expected, _ = cloning_losses(policy, burned.at_ticks(slice(4, None)), before)
        found, _ = cloning_losses(policy, burned)
        from_zero, _ = cloning_losses(policy, burned.at_ticks(slice(4, None)))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found["loss"], from_zero["loss"])


def test_a_burn_in_leaves_no_trace_in_gradients_and_batch_statistics(
    policy: Policy, windows: WindowDataset
) -> None:
    policy.train()
    batch = batches(windows, AfterBurnIn(3), 1)[0]
    frames = {name: (values / 255).requires_grad_() for name, values in batch.inputs.images.items()}
    losses, _ = cloning_losses(policy, replace(batch, inputs=replace(batch.inputs, images=frames)))
    losses["loss"].backward()
    gradient = frames["head"].grad
    assert gradient is not None
    assert not gradient[:, :3].any()
    assert gradient[:, 3:].any()
    norms = [module for module in policy.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert {int(norm.num_batches_tracked) for norm in norms} == {1}
    assert all(module.training for module in policy.modules())


def test_a_pass_begins_with_no_memory_even_in_the_middle_of_an_episode(episodes: Path) -> None:
    # Windows of 3 ticks: an episode of 5 is cut into two or three, so that lanes begin anywhere.
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 3, pad="both")
    picks = list(islice(Carried().picks(windows, 2, seed=1, first_batch=0), 60))
    made = batches(windows, Carried(), 60)
    assert sum(pick.restart for pick in picks) > 1
    assert any(pick.restart and bool((pick.places[:, 1] > 0).any()) for pick in picks), (
        "a lane begins mid-episode"
    )
    for pick, batch in zip(picks, made, strict=True):
        if pick.restart:
            assert batch.memory_reset[:, 0].all()


def test_mixed_precision_keeps_the_windows_gradients(
    policy: Policy, windows: WindowDataset
) -> None:
    """Older versions of PyTorch would reuse the weights that autocast cached in the burn-in."""
    policy.train()
    with torch.autocast("cpu", torch.bfloat16):
        losses, _ = cloning_losses(policy, batches(windows, AfterBurnIn(3), 1)[0])
    losses["loss"].backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None]
    unused = {"action_token.none", *(f"proprioception_tokens.{i}.none" for i in range(9))}
    assert set(without) <= unused


def test_windows_carried_over_equal_the_whole_episode(
    policy: Policy, windows: WindowDataset
) -> None:
    policy.eval()
    nothing_hidden = InputDropoutConfig(0, 0)
    whole = WindowDataset(windows.episodes, 5, pad="none")
    every = next(iter(BatchSource(whole, 4, 0, dropout=nothing_hidden).sample(1)))
    with torch.no_grad():
        raw = policy(every.inputs)[0].flatten(0, 1)
        ticks = map(tuple, every.actions[:, :, 0].flatten(0, 1).tolist())
        expected = dict(zip(ticks, raw, strict=True))
        memory, begun, compared = None, [False, False], 0
        carried = BatchSource(windows, 2, 3, dropout=nothing_hidden, memory=Carried())
        for batch in islice(carried.batches(0), 10):
            predictions, memory = policy(batch.inputs, memory, batch.memory_reset)
            for lane, tick in batch.valid.nonzero().tolist():
                # A lane may start inside an episode; an episode's first tick has no previous action.
                begun[lane] |= not batch.inputs.previous_action_valid[lane, tick]
                if begun[lane]:
                    of_whole = expected[tuple(batch.actions[lane, tick, 0].tolist())]
                    torch.testing.assert_close(
                        predictions[lane, tick], of_whole, rtol=1e-4, atol=1e-5
                    )
                    compared += 1
    assert compared > 15


def test_carried_memory_has_no_gradient(policy: Policy, windows: WindowDataset) -> None:
    _, memory = cloning_losses(policy, batches(windows, Carried(), 1)[0])
    assert memory["memory"].requires_grad
    assert not Carried().kept(memory)["memory"].requires_grad
    assert FromZero().kept(memory) is None
    assert AfterBurnIn(3).kept(memory) is None


def test_batches_of_carry_depend_on_their_step_alone(windows: WindowDataset) -> None:
    source = BatchSource(windows, 2, 1, memory=Carried())
    unbroken = list(islice(source.batches(0), 40))
    resumed = list(islice(source.batches(27), 13))
    for mine, theirs in zip(resumed, unbroken[27:], strict=True):
        for a, b in ((mine.actions, theirs.actions), (mine.memory_reset, theirs.memory_reset)):
            assert torch.equal(a, b)
    assert unbroken[0].memory_reset[:, 0].all()  # a pass begins


def test_calibration_runs_plain_windows(windows: WindowDataset) -> None:
    source = BatchSource(windows, 2, 1, memory=AfterBurnIn(3))
    assert all(batch.burn_in == 0 and batch.valid.shape == (2, 2) for batch in source.sample(3))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(out / "last.safetensors")[0].state_dict()


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("memory", ["carry", "burn-in"])
def test_resumed_equals_unbroken(
    command: Make,
    interrupted: Interrupted,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    memory: str,
) -> None:
    """The interruption lies in the middle of a pass, so that carried memory has to be restored."""
    options = {"memory": memory, "burn_in": 2, "window": 2, "steps": 5}
    unbroken = command(**options, out=tmp_path / "unbroken")
    unbroken.run()
    expected, training = weights(unbroken.out), command(**options)
    interrupted(training, 2)
    with safe_open(resume_path(training.out), framework="pt") as file:
        saved = [name for name in file.keys() if name.startswith("memory.")]  # noqa: SIM118 (not a dict)
    assert saved == (["memory.memory"] if memory == "carry" else [])
    replace(training, resume=True).run()
    assert equal(expected, weights(training.out))
    interrupted(replace(training, overwrite=True), 2)
    monkeypatch.setattr("ttm.training.trainer.load_memory", lambda path, device: None)
    replace(training, resume=True).run()
    assert equal(expected, weights(training.out)) == (memory == "burn-in")


def test_the_choice_is_part_of_what_a_training_is(command: Make) -> None:
    command(steps=1).run()
    with pytest.raises(UserError, match=r"--memory \(zero then, carry now\)"):
        command(steps=2, memory="carry", resume=True).run()
    with pytest.raises(UserError, match="burn-in is 0; give a number above 0"):
        command(memory="burn-in", burn_in=0).run()
