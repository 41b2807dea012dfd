"""The vision network: initialisation of FiLM, reduction, weights from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import url_map
from safetensors.torch import save_file
from torch import nn

from ttm.policy.config import VisionConfig
from ttm.policy.errors import UserError
from ttm.policy.vision import CameraTokens, FilmEfficientNet, position_waves

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
    ],
)
def test_impossible_settings_are_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FilmEfficientNet(replace(SMALL, **change), 8, (32, 32))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(EfficientNet.from_name("efficientnet-b0", include_top=False).state_dict(), path)
    with pytest.raises(
        UserError,
        match=r"do not fit [^\n]*: _conv_stem.weight is \(32, 3, 3, 3\), not \(8, 3, 3, 3\);",
    ):
        FilmEfficientNet(replace(SMALL, weights=str(path)), 8, (32, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_conv_stem.weight": None}, "_conv_stem.weight is missing"),
        ({"stem": torch.zeros(1)}, "stem is not one of it"),
        ({"_bn0.num_batches_tracked": None, "_fc.weight": torch.zeros(1)}, None),
    ],
)
def test_the_first_name_that_does_not_fit_is_told(
    change: dict[str, torch.Tensor | None], message: str | None, tmp_path: Path
) -> None:
    """Counters that older files lack, and the classifier, do not matter."""
    names = {"width_coefficient": 0.25, "depth_coefficient": 0.5}
    plain = EfficientNet.from_name("efficientnet-b0", include_top=False, **names)
    changed = {**plain.state_dict(), **change}
    path = tmp_path / "weights.pth"
    torch.save({name: value for name, value in changed.items() if value is not None}, path)
    config = replace(SMALL, weights=str(path))
    if message is None:
        network = FilmEfficientNet(config, 8, (32, 32))
        assert torch.equal(network.stem[0].weight, plain._conv_stem.weight)
    else:
        with pytest.raises(UserError, match=message):
            FilmEfficientNet(config, 8, (32, 32))


@pytest.mark.parametrize("content", [b"no weights", None, {"state_dict": {}}])
def test_a_file_without_state_dict_is_told(content: object, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(Path("a class") if content is None else content, path)
    with pytest.raises(UserError, match="cannot be read; give a PyTorch or safetensors state dict"):
        FilmEfficientNet(replace(SMALL, weights=str(path)), 8, (32, 32))


def test_imagenet_is_downloaded_from_where_the_package_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = EfficientNet.from_name("efficientnet-b0")
    asked = []

    def download(url: str, **options: object) -> dict[str, torch.Tensor]:
        asked.append(url)
        return plain.state_dict()

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    network = FilmEfficientNet(VisionConfig(weights="imagenet", reduction=8), 8, (32, 32))
    assert torch.equal(network.stem[0].weight, plain._conv_stem.weight)
    assert asked == [url_map["efficientnet-b0"]]
    assert network.weights_used == "imagenet (efficientnet-b0)"


def test_without_network_the_file_to_fetch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str, **options: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    with pytest.raises(
        UserError, match=r"^ImageNet [^\n]*no route[^\n]*fetch https://[^\n]*b0-\w+.pth else"
    ):
        FilmEfficientNet(VisionConfig(weights="imagenet"), 8, (32, 32))


def test_positions_differ_everywhere() -> None:
    distances = torch.cdist(position_waves((8, 6), 16), position_waves((8, 6), 16))
    assert (distances + torch.eye(48) > 0.1).all()


def test_camera_tokens_tell_where_a_feature_is() -> None:
    tokens = CameraTokens(4, (8, 8), 16, 2)
    features = torch.zeros(2, 4, 8, 8)
    features[0, :, 1, 1], features[1, :, 6, 6] = 3.0, 3.0
    here, there = tokens(features)
    assert not torch.allclose(here, there, atol=1e-3)
