"""The options of `ttm train`: names, checks, and what a resumed training must have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ttm.policy.errors import UserError
from ttm.policy.network.config import ActionHeadConfig
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.training.cli import parse
from ttm.training.cloning.command import TrainCommand
from ttm.training.cloning.loop.resume import MAY_CHANGE, comparable
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.settings.groups import (
    AugmentationConfig,
    InputDropoutConfig,
    LossConfig,
    MemoryStartConfig,
    OptimizationConfig,
)
from ttm.training.common.schedule import Budget

Make = Callable[..., TrainCommand]
STANDARD = TrainOptions(data=("d",), out=Path("o"))


def parsed(*words: str) -> TrainCommand:
    command = parse(["train", "--data", "d", "--out", "o", *words])
    assert isinstance(command, TrainCommand)
    return command


def test_the_command_line_has_the_defaults_of_the_dataclasses() -> None:
    assert parsed().by_name() == STANDARD.by_name()


def test_options_of_parts_have_no_prefix_and_those_of_the_augmentation_have_one() -> None:
    words = "--steps 3 --memory burn-in --burn-in 4 --learning-rate 0.1 --transition-weight 2"
    words += " --previous-action-dropout 0.7 --augmentation.shift 0.1 --augmentation.hue-rad 0"
    command = parsed(*words.split())
    assert command.budget == Budget(steps=3)
    assert command.memory_start == MemoryStartConfig("burn-in", 4)
    assert command.optimization == OptimizationConfig(learning_rate=0.1)
    assert command.loss == LossConfig(2.0)
    assert command.input_dropout == InputDropoutConfig(previous_action_dropout=0.7)
    assert command.augmentation == AugmentationConfig(shift=0.1, hue_rad=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": AugmentationConfig(shift=1.5)}, "--augmentation.shift is 1.5"),
        ({"augmentation": AugmentationConfig(hue_rad=-1.0)}, "--augmentation.hue-rad is -1.0"),
        ({"budget": Budget(steps=0)}, "--steps is 0"),
        ({"optimization": OptimizationConfig(average_decay=2.0)}, "--average-decay is 2.0"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(STANDARD, **changes).check()  # type: ignore[arg-type]


def test_every_option_is_compared_or_may_change() -> None:
    names = set(STANDARD.by_name())
    assert names >= MAY_CHANGE
    assert set(comparable(STANDARD)) == names - MAY_CHANGE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": AugmentationConfig(shift=0.1)}, "--augmentation.shift is 0.1, but .* has 0.06"),
        ({"transition_weight": 1.0}, "--transition-weight is 1.0, but the training to resume has 5.0"),
        ({"head_options": ("kind=bins",)}, "has kind=bins, but the action head .* has kind=continuous"),
    ],
)  # fmt: skip
def test_a_training_is_not_resumed_as_another(
    command: Make, changes: dict[str, object], message: str
) -> None:
    command(steps=1).run()
    with pytest.raises(UserError, match=message):
        command(steps=2, resume=True, **changes).run()


def test_the_action_head_can_be_chosen_and_a_checkpoints_head_stays(
    command: Make, tmp_path: Path
) -> None:
    first = command(steps=1, head_options=("kind=bins", "num_bins=8"))
    assert first.run() == 0
    last = first.out / "last.safetensors"
    head = load_checkpoint(last)[0].config.head
    assert head == ActionHeadConfig(kind="bins", num_bins=8)
    tuned = command(steps=1, init=last, out=tmp_path / "tuned", head_options=("num_bins=8",))
    assert tuned.run() == 0
    assert load_checkpoint(tuned.out / "last.safetensors")[0].config.head == head
    other = command(steps=1, init=last, out=tmp_path / "other", head_options=("num_bins=9",))
    with pytest.raises(UserError, match=r"--head-options has num_bins=9, but .* has num_bins=8"):
        other.run()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("kind=mixture", "action head option kind is 'mixture'; give one of continuous, bins"),
        ("num_bins=0", "action head option num_bins is 0"),
        ("bins=8", "the action head has no option 'bins'; it has kind, loss"),
        ("num_bins=many", "action head option num_bins is 'many'; give a number"),
    ],
)
def test_wrong_head_options_are_told(command: Make, option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(head_options=(option,)).run()
