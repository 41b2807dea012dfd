"""The ResNet with FiLM: agreement with another implementation, reduction, weights from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetModel

from ttm.policy.config import VisionConfig
from ttm.policy.engines import TorchEngine
from ttm.policy.errors import UserError
from ttm.policy.openvino_engine import OpenVinoEngine
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.spec import PolicySpec
from ttm.policy.tick_module import example_tick, random_tick
from ttm.policy.vision import IMAGENET_URL, FilmResNet, ResNet, build_vision

CONFIG = VisionConfig(model="resnet18")
IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)


def as_transformers_names(name: str) -> str:
    """Return the name that the package transformers gives to a parameter of torchvision's."""
    if not name.startswith("layer"):
        layer, _, rest = name.partition(".")
        part = {"conv1": "convolution", "bn1": "normalization"}[layer]
        return f"embedder.embedder.{part}.{rest}"
    stage, block, layer, *rest = name.removeprefix("layer").split(".")
    if layer == "downsample":
        part = f"shortcut.{('convolution', 'normalization')[int(rest[0])]}"
        rest = rest[1:]
    else:
        kind = "convolution" if layer.startswith("conv") else "normalization"
        part = f"layer.{int(layer[-1]) - 1}.{kind}"
    return f"encoder.stages.{int(stage) - 1}.layers.{block}.{part}.{'.'.join(rest)}"


def test_equals_the_network_of_transformers_at_the_start() -> None:
    mine = FilmResNet(CONFIG, 8).eval()
    plain = ResNet("resnet18")
    plain.conv1, plain.bn1 = mine.stem[0], mine.stem[1]
    for number, block in enumerate(mine.blocks):
        plain.get_submodule(f"layer{number // 2 + 1}")[number % 2] = block  # type: ignore[operator]
    theirs = ResNetModel(ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512],
                                      depths=[2, 2, 2, 2], layer_type="basic")).eval()  # fmt: skip
    state = {as_transformers_names(name): value for name, value in plain.state_dict().items()}
    theirs.load_state_dict(state)
    scaled = (IMAGES / 255 - mine.pixel_mean) / mine.pixel_std
    with torch.no_grad():
        expected = theirs(scaled).last_hidden_state
        torch.testing.assert_close(mine(IMAGES, torch.randn(4, 8)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("reduction", "side", "channels"), [(8, 4, 128), (16, 2, 256)])
def test_reduction_cuts_the_network(reduction: int, side: int, channels: int) -> None:
    network = FilmResNet(replace(CONFIG, reduction=reduction, norm="group"), 8).eval()
    assert network(IMAGES, torch.zeros(4, 8)).shape == (4, channels, side, side)
    assert network.num_channels == channels
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_weights_of_torchvision_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ResNet("resnet18").state_dict() | {
        "fc.weight": torch.zeros(1),
        "fc.bias": torch.ones(1),
    }
    path = tmp_path / "weights.pth"
    torch.save(whole, path)
    network = FilmResNet(replace(CONFIG, weights=str(path), reduction=8), 8)
    assert torch.equal(
        network.blocks[2].downsample[0].weight, whole["layer2.0.downsample.0.weight"]
    )
    asked = []

    def download(url: str, **options: object) -> dict[str, torch.Tensor]:
        asked.append(url)
        return whole

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    network = FilmResNet(replace(CONFIG, weights="imagenet"), 8)
    assert torch.equal(network.stem[0].weight, whole["conv1.weight"])
    assert asked[0].startswith(f"{IMAGENET_URL}resnet18-")
    with pytest.raises(UserError, match="names that torchvision gives"):
        FilmResNet(replace(CONFIG, model="resnet34", weights=str(path)), 8)


def test_impossible_settings_are_named() -> None:
    with pytest.raises(UserError, match="resnet18 has neither a width_coefficient"):
        build_vision(replace(CONFIG, width_coefficient=0.5), 8, None)
    for unknown in ("resnet50", "efficientnet-b8"):  # the package knows a B8, without weights
        with pytest.raises(
            UserError, match=f"vision model is '{unknown}'; give one of .*-b0, .*34"
        ):
            build_vision(replace(CONFIG, model=unknown), 8, None)  # type: ignore[arg-type]


def test_every_engine_runs_it(spec: PolicySpec, config: PolicyConfig) -> None:
    vision = VisionConfig(model="resnet18", reduction=8, norm="group")
    policy = Policy(spec, replace(config, vision=vision)).eval()
    inputs, (_, state) = random_tick(policy, 1), example_tick(policy)
    made, _ = OpenVinoEngine(policy).step(inputs, state)
    torch.testing.assert_close(made, TorchEngine(policy).step(inputs, state)[0], rtol=0, atol=1e-4)
