"""`ttm train --vision-weights`: what vision starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_pytorch import EfficientNet
from rich.console import Console

from ttm.datasets import EpisodeWriter
from ttm.policy import PRESETS, ActionPart, CameraSpec, PolicySpec, UserError, load_checkpoint
from ttm.policy.spec import SHIPPED_CHECKPOINT
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
        UserError, match=f"the data have no camera; omit .*--{option.replace('_', '-')}"
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
    again = command(
        vision_model="resnet18",
        vision_weights=str(training.out / "last.safetensors"),
        core_options=(),
    )
    taken = ("vision.", "camera_tokens.")
    seen = {n: x for n, x in policy.state_dict().items() if n.startswith(taken)}
    found = assembled(again, Console(quiet=True)).policy.state_dict()
    assert all(torch.equal(found[name], value) for name, value in seen.items())


def test_a_policy_for_another_robot_sees_as_a_checkpoint_does(
    command: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vision, FiLM and the code of the instruction are the checkpoint's to the bit; all else is new."""
    first = command(preset="tiny", steps=1, seed=5)
    assert first.run() == 0
    source = first.out / "last.safetensors"
    other = PolicySpec(
        "another", (CameraSpec("base", 32, 32),), (), (ActionPart("drive", 1, "m/s"),), rate_hz=10.0
    )
    data = str(tmp_path / "others")
    for seed in range(3):
        with EpisodeWriter(Path(data) / f"{seed}.hdf5", other) as writer:
            for tick in range(4):
                frame = np.full((32, 32, 3), 40 * seed + tick, np.uint8)
                writer.append({"base": frame}, np.array([tick]), timestamp_s=tick / 10)
            writer.finish(instruction="go", embedding=np.ones(384, np.float32), seed=seed)
    out = tmp_path / "other"
    with pytest.raises(UserError, match=r"'head' is not in this data.* --vision-weights .*--init$"):
        command(data=(data,), out=out, init=source).run()

    training = command(data=(data,), out=out, vision_weights=str(source), freeze_vision=True)
    capsys.readouterr()
    assert training.run() == 0
    before, after = (load_checkpoint(p)[0].state_dict() for p in (source, out / "last.safetensors"))
    seen = [name for name in after if name.startswith(("vision.", "language."))]
    assert len(seen) > 50
    assert all(torch.equal(before[name], after[name]) for name in seen)
    printed = " ".join(capsys.readouterr().err.split())
    assert f"code of instructions, {len(seen)} tensors; the others are new" in printed
    assert load_checkpoint(out / "last.safetensors")[0].spec == other
    assert (
        command(
            data=(data,),
            out=out,
            resume=True,
            steps=3,
            resume_anyway=True,
            vision_weights=str(source),
            freeze_vision=True,
        ).run()
        == 0
    )

    trained = command(data=(data,), out=tmp_path / "t", vision_weights=str(source))
    assert trained.run() == 0  # a start, which training changes
    after = load_checkpoint(tmp_path / "t" / "last.safetensors")[0].state_dict()
    assert not all(torch.equal(before[name], after[name]) for name in seen)


def test_vision_of_the_shipped_policy_is_taken_by_its_name(command: Make) -> None:
    trainer = assembled(command(vision_weights="shipped", batch_size=2), Console(quiet=True))
    shipped = load_checkpoint(SHIPPED_CHECKPOINT)[0].state_dict()
    found = trainer.policy.state_dict()
    seen = [name for name in shipped if name.startswith(("vision.", "language."))]
    assert all(torch.equal(shipped[name], found[name]) for name in seen)
    with pytest.raises(
        UserError, match="--vision-model is resnet18, but vision is that of shipped"
    ):
        assembled(command(vision_weights="shipped", vision_model="resnet18"), Console(quiet=True))
