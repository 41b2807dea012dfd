"""EfficientNet (Tan and Le 2019) with FiLM after every MBConv block, as in RT-1.

The network is that of `efficientnet-pytorch`, so that its ImageNet weights load. It can be narrowed,
and cut after an early stage, so that small frames keep a feature map of useful size.
"""

from __future__ import annotations

from typing import Any

from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import url_map
from torch import nn

from ttm.policy.network.config import VisionConfig
from ttm.policy.network.film_network import FilmNetwork
from ttm.policy.network.network_weights import load_network_weights


class FilmEfficientNet(FilmNetwork):
    """An EfficientNet; see `FilmNetwork`."""

    def __init__(
        self, config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
    ) -> None:
        """`image_size` is (H, W) of all cameras, or None if they differ.

        With None, the padding of convolutions is computed at run time.
        """
        network = _efficientnet(config, image_size)
        weights_used = load_network_weights(
            network,
            config,
            url=url_map[config.model],
            classifier="_fc.",
            package="efficientnet-pytorch",
        )
        blocks = _blocks_up_to(network, config.reduction)
        channels = [block._block_args.output_filters for block in blocks]
        stem = nn.Sequential(network._conv_stem, network._bn0, nn.SiLU())
        super().__init__(config, condition_size, stem, blocks, channels)
        self.weights_used = weights_used


def _efficientnet(config: VisionConfig, image_size: tuple[int, int] | None) -> Any:
    overrides = {
        "width_coefficient": config.width_coefficient,
        "depth_coefficient": config.depth_coefficient,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    return EfficientNet.from_name(config.model, include_top=False, image_size=image_size, **given)


def _blocks_up_to(network: Any, reduction: int) -> list[Any]:
    """Return the MBConv blocks before the first that would exceed the total stride `reduction`."""
    kept, total = [], 2  # the stem has stride 2
    for block in network._blocks:
        stride = block._block_args.stride
        total *= stride[0] if isinstance(stride, list | tuple) else stride
        if total > reduction:
            break
        block._swish = nn.SiLU()  # the package's own is slower, and torch.compile cannot trace it
        kept.append(block)
    return kept
