"""`ttm train --vision-weights`: what vision starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from efficientnet_pytorch import EfficientNet
from rich.console import Console

from ttm.policy import PRESETS, UserError, load_checkpoint
from ttm.training.network import chosen_network
from ttm.training.options import TrainOptions
from ttm.training.train import TrainCommand, assembled

Make = Callable[..., TrainCommand]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with weights of EfficientNet-B0, as a download of ImageNet's would be."""
    path = tmp_path_factory.mktemp("weights") / "b0.pth"
    torch.save(EfficientNet.from_name("efficientnet-b0").state_dict(), path)
    return path


def test_tiny_starts_from_the_weights_of_a_file_and_resumes_without_it(
    command: Make, weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.pth"
    file.write_bytes(weights.read_bytes())
    training = command(vision_weights=str(file), freeze_vision=True)
    assert training.run() == 0
    file.unlink()
    policy = load_checkpoint(training.out / "last.safetensors")[0]
    assert policy.vision is not None
    assert torch.equal(policy.vision.stem[0].weight, torch.load(weights)["_conv_stem.weight"])
    assert command(vision_weights=str(file), freeze_vision=True, resume=True).run() == 0


@pytest.mark.parametrize("preset", ["base", "paper"])
def test_larger_presets_keep_their_network(preset: str) -> None:
    config, asked = PRESETS[preset].vision, TrainOptions(data=(), out=Path(), preset=preset)  # type: ignore[arg-type]
    assert chosen_network(asked).vision == config
    named = chosen_network(replace(asked, vision_weights="imagenet"))
    assert named.vision == replace(config, weights="imagenet")


def test_a_file_of_another_network_is_an_error(command: Make, weights: Path) -> None:
    with pytest.raises(UserError, match=r"do not fit efficientnet-b3 .*_blocks.16"):
        assembled(command(preset="paper", vision_weights=str(weights)), Console(quiet=True))


def test_a_checkpoint_has_vision_of_its_own(command: Make) -> None:
    with pytest.raises(UserError, match="--vision-weights is imagenet, but with --init vision is"):
        command(vision_weights="imagenet", init=Path("shipped")).run()


@pytest.mark.parametrize("option", ["vision_weights", "vision_model"])
def test_data_without_cameras_have_no_vision_to_choose(command: Make, option: str) -> None:
    training = command(cameras=("none",), **{option: "resnet18"})
    with pytest.raises(
        UserError, match=f"the data have no camera; leave out .*--{option.replace('_', '-')}"
    ):
        assembled(training, Console(quiet=True))


def test_a_baseline_without_core_learns_through_another_vision_network(command: Make) -> None:
    """FiLM-ResNet, TokenLearner and the action head: behaviour cloning of single frames."""
    plain = ("num_layers=0",)
    training = command(vision_model="resnet18", core="none", core_options=plain, steps=1)
    assert training.run() == 0
    policy = load_checkpoint(training.out / "last.safetensors")[0]
    assert policy.config.vision.model == "resnet18"
    assert policy.config.vision.reduction == PRESETS["tiny"].vision.reduction
    with pytest.raises(UserError, match="--vision-model is resnet34, but with --init vision is"):
        command(vision_model="resnet34", init=training.out / "last.safetensors").run()
