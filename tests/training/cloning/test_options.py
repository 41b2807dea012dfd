"""The options of `ttm train`: names, checks, and what a resumed training must have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ttm.policy import UserError, load_checkpoint
from ttm.policy.config import ActionHeadConfig
from ttm.training.cli import parse
from ttm.training.options import (
    FIRST_SKILL_STEPS,
    PLACES,
    SEEING_STEPS,
    AugmentationConfig,
    InputDropoutConfig,
    KeepingConfig,
    LossConfig,
    MemoryStartConfig,
    OptimizationConfig,
    OptimizerConfig,
    TrainOptions,
)
from ttm.training.resume import MAY_CHANGE, described
from ttm.training.train import TrainCommand, assembled

Make = Callable[..., TrainCommand]
STANDARD = TrainOptions(data=("d",), out=Path("o"))


def parsed(*words: str) -> TrainCommand:
    command = parse(["train", "--data", "d", "--out", "o", *words])
    assert isinstance(command, TrainCommand)
    return command


def test_the_command_line_has_the_defaults_of_the_dataclasses() -> None:
    assert parsed().by_name() == STANDARD.by_name()


def test_options_of_parts_have_no_prefix(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{burn-in: 4, weigh-starts: 2, previous-action-dropout: 0.7, save-every: 5}")
    words = "--steps 3 --memory burn-in --learning-rate 0.1 --config"
    command = parsed(*words.split(), str(file))
    assert command.steps == 3
    assert command.memory_start == MemoryStartConfig("burn-in", 4)
    assert command.optimization == OptimizationConfig(learning_rate=0.1)
    assert command.loss == LossConfig(weigh_starts=2.0)
    assert command.input_dropout == InputDropoutConfig(previous_action_dropout=0.7)
    assert command.keeping == KeepingConfig(save_every=5)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options that the help of the command lists, in their order."""
    with pytest.raises(SystemExit):
        parsed("--help")
    found = re.findall(r"^\W --([a-z][\w.-]*)", capsys.readouterr().out, re.M)
    assert "data" in found
    return found


def test_options_that_are_seldom_changed_stand_in_the_file_alone(shown: list[str]) -> None:
    hidden = {name for name, place in PLACES.items() if place.in_file_alone}
    assert set(shown) - {"config"} == set(PLACES) - hidden
    assert len(shown) <= 46
    assert {
        "optimizer.betas",
        "augmentation.shift",
        "weight-decay",
        "head-options",
    } <= hidden
    for option in (
        "--optimizer.epsilon",
        "--augmentation.shift",
        "--weight-decay",
    ):
        with pytest.raises(SystemExit):
            parsed(option, "0.1")


def test_the_help_begins_with_the_options_that_matter(shown: list[str]) -> None:
    first = [
        "data",
        "out",
        "preset",
        "core",
        "steps",
        "minutes",
        "init",
        "resume",
        "device",
        "seed",
    ]
    assert shown[: len(first)] == first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": AugmentationConfig(shift=1.5)}, "^augmentation.shift is 1.5"),
        ({"augmentation": AugmentationConfig(hue_rad=-1.0)}, "^augmentation.hue-rad is -1.0"),
        ({"steps": 0}, "--steps is 0"),
        ({"loss": LossConfig(transition_weight=math.nan)}, "^transition-weight is nan"),
        ({"optimization": OptimizationConfig(weight_decay=-0.1)}, "^weight-decay is -0.1"),
        ({"seed": -1}, "--seed is -1"),
        ({"optimization": OptimizationConfig(average_decay=2.0)}, "^average-decay is 2.0"),
        ({"optimizer": OptimizerConfig(betas=(0.9, 1.0))}, "^optimizer.betas has 1.0"),
        ({"optimizer": OptimizerConfig(gradient_limit=0.0)}, "^optimizer.gradient-limit is 0.0"),
        ({"keeping": KeepingConfig(keep=2)}, "^keep is 2, but .* save-every"),
        ({"keeping": KeepingConfig(save_every=0)}, "save-every is 0"),
        ({"shuffle": 0}, "shuffle is 0"),
        ({"shuffle": 8, "window": "episode"}, "shuffle is 8, but sections are of windows that"),
        ({"resume_anyway": True}, "--resume-anyway says how to resume; give --resume too"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(STANDARD, **changes).check()  # type: ignore[arg-type]


def test_the_optimiser_has_the_values_of_its_group(command: Make) -> None:
    group = OptimizerConfig((0.5, 0.6), 1e-3, 1e-4, warmup_steps=7, longest_warmup=0.5, floor=0.25)
    trainer = assembled(command(optimizer=group, augment=False), Console(quiet=True))
    assert all(each["betas"] == (0.5, 0.6) for each in trainer.optimizer.param_groups)
    assert all(each["eps"] == 1e-3 for each in trainer.optimizer.param_groups)
    schedule = trainer.options.optimizer
    assert (schedule.warmup_steps, schedule.longest_warmup, schedule.floor) == (7, 0.5, 0.25)
    trainer.backpropagate(next(iter(trainer.source.sample(1))))
    trainer.update_weights()
    gradients = [each.grad for each in trainer.policy.parameters() if each.grad is not None]
    assert torch.nn.utils.get_total_norm(gradients) == pytest.approx(1e-4, rel=1e-3)


def test_every_option_is_compared_or_may_change() -> None:
    names = set(STANDARD.by_name())
    assert names >= MAY_CHANGE
    assert set(described(STANDARD)["options"]) == names - MAY_CHANGE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": AugmentationConfig(shift=0.1)}, r"augmentation.shift \(0.06 then, 0.1 now\)"),
        ({"transition_weight": 1.0}, r"another training than .*: transition-weight \(5.0 then, 1.0 now\)"),
        ({"seed": 1, "window": 2}, r"--seed \(0 then, 1 now\), --window \(3 then, 2 now\)"),
        ({"head_options": ("kind=bins",)}, "has kind=bins, unlike the action head"),
    ],
)  # fmt: skip
def test_a_training_is_not_resumed_as_another(
    command: Make, changes: dict[str, object], message: str
) -> None:
    command(steps=1).run()
    with pytest.raises(UserError, match=message):
        command(steps=1, resume=True, **changes).run()


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
    with pytest.raises(UserError, match=r"head-options has num_bins=9, unlike the action head"):
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


FROZEN = ["--vision-weights", "shipped", "--freeze-vision"]


@pytest.mark.parametrize(
    ("words", "sees", "needed"),
    [([], True, FIRST_SKILL_STEPS), ([], False, SEEING_STEPS), (FROZEN, True, SEEING_STEPS)],
)
def test_a_training_too_short_for_a_skill_gets_the_remedy(
    words: list[str], sees: bool, needed: int
) -> None:
    told = parsed(*words, "--minutes", "5").too_short(40, 7.4, sees)
    assert told.startswith("40 steps of 7.4 s are too few")
    remedy, _, quicker = told.partition("; quicker: ")
    assert remedy.endswith(f"--steps {needed}, or --minutes {math.ceil(needed * 7.4 / 60)}")
    assert quicker.split() == (FROZEN if sees and not words else [])


def test_a_training_that_is_long_enough_or_fine_tunes_gets_no_remark() -> None:
    assert not parsed().too_short(FIRST_SKILL_STEPS, 1.0, sees=True)
    assert not parsed(*FROZEN).too_short(SEEING_STEPS, 1.0, sees=True)
    assert parsed().too_short(SEEING_STEPS, 1.0, sees=True)
    assert not parsed("--init", "shipped").too_short(1, 1.0, sees=True)
