"""ResNet (He et al. 2016) with FiLM after every residual block, as in BC-Z (Jang et al. 2022).

The parameters are named and shaped as in torchvision, so that its ImageNet weights load. As the
EfficientNet, it can be cut after an early stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from efficientnet_pytorch.utils import drop_connect
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.network.config import VisionConfig
from ttm.policy.network.film_network import FilmNetwork
from ttm.policy.network.network_weights import load_network_weights

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages. The first one has a total stride of 4, and each other twice the last."""
DEPTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
)
"""Model -> residual blocks of the stages."""
IMAGENET_FILES: Mapping[str, str] = MappingProxyType(
    {"resnet18": "resnet18-f37072fd.pth", "resnet34": "resnet34-b627a593.pth"}
)
"""Model -> the file of its weights at `IMAGENET_URL`."""
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

    def forward(self, x: Tensor, drop_connect_rate: float = 0.0) -> Tensor:
        """Map x, (B, C, H, W), to (B, channels, H / stride, W / stride).

        drop_connect_rate: the portion of samples whose convolutions are left out in training.
        """
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if drop_connect_rate:
            y = drop_connect(y, drop_connect_rate, self.training)
        return F.relu(self.downsample(x) + y)


class ResNet(nn.Module):
    """The network without its last layer."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        widths = pairwise((WIDTHS[0], *WIDTHS))
        for stage, ((before, width), depth) in enumerate(zip(widths, DEPTHS[model], strict=True)):
            first = ResidualBlock(before, width, 2 if stage else 1)
            others = (ResidualBlock(width, width, 1) for _ in range(depth - 1))
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *others))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def blocks(self, reduction: int) -> list[ResidualBlock]:
        """Return the blocks up to a total stride of `reduction`."""
        stages = [stage for stage in range(len(WIDTHS)) if 4 << stage <= reduction]
        return [block for stage in stages for block in self.get_submodule(f"layer{stage + 1}")]  # type: ignore[attr-defined]


class FilmResNet(FilmNetwork):
    """A ResNet; see `FilmNetwork`."""

    def __init__(self, config: VisionConfig, condition_size: int) -> None:
        """Raises `UserError` for the coefficients of width and depth, which a ResNet does not have."""
        if config.width_coefficient is not None or config.depth_coefficient is not None:
            raise UserError(
                f"{config.model} has neither a width_coefficient nor a depth_coefficient; leave them out"
            )
        network = ResNet(config.model)
        weights_used = load_network_weights(
            network,
            config,
            imagenet=lambda: IMAGENET_URL + IMAGENET_FILES[config.model],
            classifier="fc.",
            package="torchvision",
        )
        stem = nn.Sequential(network.conv1, network.bn1, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks = network.blocks(config.reduction)
        super().__init__(
            config, condition_size, stem, blocks, [block.conv2.out_channels for block in blocks]
        )
        self.weights_used = weights_used
