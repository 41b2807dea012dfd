"""The vision network: initialisation of FiLM, reduction, weights from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from efficientnet_pytorch import EfficientNet
from safetensors.torch import save_file
from torch import nn

from ttm.policy.errors import UserError
from ttm.policy.network.config import VisionConfig
from ttm.policy.network.film_efficientnet import FilmEfficientNet
from ttm.policy.network.vision_tokens import CameraTokens, position_waves

SMALL = VisionConfig(width_coefficient=0.25, depth_coefficient=0.5, reduction=8)
IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)


def test_film_changes_nothing_at_the_start() -> None:
    network = FilmEfficientNet(SMALL, 8, (32, 32)).eval()
    conditioned = network(IMAGES, torch.randn(2, 8))
    network.films = nn.ModuleList(PassThrough() for _ in network.films)
    assert torch.equal(conditioned, network(IMAGES, torch.randn(2, 8)))


class PassThrough(nn.Module):
    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return x


def test_condition_reaches_its_own_images_alone() -> None:
    network = FilmEfficientNet(SMALL, 8, (32, 32)).eval()
    for film in network.films:
        nn.init.normal_(film.project.weight)
    condition = torch.randn(2, 8)
    other = condition.clone()
    other[1] += 1
    features, changed = network(IMAGES, condition), network(IMAGES, other)
    torch.testing.assert_close(features[:2], changed[:2])
    assert not torch.allclose(features[2:], changed[2:])


@pytest.mark.parametrize(("reduction", "side"), [(8, 4), (16, 2), (32, 1)])
def test_reduction_cuts_the_network(reduction: int, side: int) -> None:
    config = replace(SMALL, reduction=reduction)
    features = FilmEfficientNet(config, 8, (32, 32)).eval()(IMAGES, torch.zeros(4, 8))
    assert features.shape[2:] == (side, side)


def test_equals_the_package_on_normalized_images() -> None:
    network = FilmEfficientNet(VisionConfig(reduction=32), 8, (64, 64)).eval()
    plain = EfficientNet.from_name("efficientnet-b0", include_top=False, image_size=64).eval()
    plain._conv_stem, plain._bn0 = network.stem[0], network.stem[1]
    plain._blocks = network.blocks
    image = torch.rand(1, 3, 64, 64)
    expected = plain.extract_endpoints((image - network.pixel_mean) / network.pixel_std)[
        "reduction_5"
    ]
    torch.testing.assert_close(network(image, torch.zeros(1, 8)), expected, rtol=1e-4, atol=1e-5)


def test_uint8_and_float_images_are_the_same() -> None:
    network = FilmEfficientNet(SMALL, 8, (32, 32)).eval()
    condition = torch.zeros(4, 8)
    torch.testing.assert_close(network(IMAGES, condition), network(IMAGES.float() / 255, condition))


def test_weights_come_from_a_file_and_are_named(tmp_path: Path) -> None:
    plain = EfficientNet.from_name(
        "efficientnet-b0", include_top=False, width_coefficient=0.25, depth_coefficient=0.5
    )
    path = tmp_path / "weights.safetensors"
    save_file(plain.state_dict(), path)
    network = FilmEfficientNet(replace(SMALL, weights=str(path)), 8, (32, 32))
    assert torch.equal(network.stem[0].weight, plain._conv_stem.weight)
    assert str(path) in network.weights_used


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "nowhere.pth"}, "nowhere.pth"),
        ({"weights": "imagenet", "norm": "group"}, "BatchNorm"),
        ({"model": "resnet50"}, "resnet50"),
    ],
)
def test_impossible_settings_are_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FilmEfficientNet(replace(SMALL, **change), 8, (32, 32))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(EfficientNet.from_name("efficientnet-b0", include_top=False).state_dict(), path)
    with pytest.raises(UserError, match="do not fit"):
        FilmEfficientNet(replace(SMALL, weights=str(path)), 8, (32, 32))


def test_positions_differ_everywhere() -> None:
    distances = torch.cdist(position_waves((8, 6), 16), position_waves((8, 6), 16))
    assert (distances + torch.eye(48) > 0.1).all()


def test_camera_tokens_tell_where_a_feature_is() -> None:
    tokens = CameraTokens(4, (8, 8), 16, 2)
    features = torch.zeros(2, 4, 8, 8)
    features[0, :, 1, 1], features[1, :, 6, 6] = 3.0, 3.0
    here, there = tokens(features)
    assert not torch.allclose(here, there, atol=1e-3)
