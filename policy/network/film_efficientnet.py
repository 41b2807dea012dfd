"""EfficientNet (Tan and Le 2019) with FiLM (Perez et al. 2018) after every MBConv block, as in RT-1.

The network is that of `efficientnet-pytorch`, so that its ImageNet weights load. It can be narrowed,
and cut after an early stage, so that small frames keep a feature map of useful size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import url_map
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ttm.policy.errors import UserError
from ttm.policy.network.config import VisionConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GROUP_SIZE = 8
"""Channels per group of GroupNorm. The numbers of channels of EfficientNet are multiples of it."""


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


class FilmEfficientNet(nn.Module):
    """Map images and a condition (the instruction) to a feature map of `num_channels` channels."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
    ) -> None:
        """`image_size` is (H, W) of all cameras, or None if they differ.

        With None, the padding of convolutions is computed at run time.
        """
        super().__init__()
        network = _efficientnet(config, image_size)
        self.weights_used = load_network_weights(network, config)
        self.drop_connect_rate = config.drop_connect_rate
        self.stem = nn.Sequential(network._conv_stem, network._bn0, nn.SiLU())
        blocks = _blocks_up_to(network, config.reduction)
        channels = [block._block_args.output_filters for block in blocks]
        self.blocks = nn.ModuleList(blocks)
        self.films = nn.ModuleList(Film(condition_size, count) for count in channels)
        self.num_channels: int = channels[-1]
        if config.norm == "group":
            _replace_batch_norm(self)
        for name, values in (("pixel_mean", IMAGENET_MEAN), ("pixel_std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor, condition: Tensor) -> Tensor:
        """Return the feature map, (B * n, C, H / reduction, W / reduction).

        images: (B * n, 3, H, W) uint8, or float in [0, 1]; condition: (B, E).
        """
        scaled = images / 255 if images.dtype == torch.uint8 else images
        scaled = (scaled - self.pixel_mean) / self.pixel_std
        x: Tensor = self.stem(scaled.contiguous(memory_format=torch.channels_last))
        for index, (block, film) in enumerate(zip(self.blocks, self.films, strict=True)):
            rate = self.drop_connect_rate * index / len(self.blocks)
            x = film(block(x, drop_connect_rate=rate), condition)
        return x


def load_network_weights(network: nn.Module, config: VisionConfig) -> str:
    """Load the weights that `config.weights` names into an EfficientNet.

    Returns a text that says which weights were used.
    """
    if config.weights == "random":
        return "random"
    if config.norm == "group":
        raise UserError(
            f"vision weights '{config.weights}' were trained with BatchNorm, but norm is 'group'; "
            f"set norm to 'batch' or weights to 'random'"
        )
    state = (
        _imagenet_state(config.model)
        if config.weights == "imagenet"
        else _state_from_file(config.weights)
    )
    state = {name: value for name, value in state.items() if not name.startswith("_fc.")}
    misfit = _first_misfit(network.state_dict(), state)
    if misfit is not None:
        raise UserError(
            f"vision weights '{config.weights}' do not fit {config.model} (width {config.width_coefficient}, "
            f"depth {config.depth_coefficient}): {misfit}; give weights of the same network, with the names "
            "that efficientnet-pytorch gives them"
        )
    network.load_state_dict(state)
    return f"{config.weights} ({config.model})"


def _first_misfit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """Return where two state dicts differ in names or shapes, in words, or None if they do not."""
    for name, tensor in wanted.items():
        if name not in given:
            if name.endswith("num_batches_tracked"):  # older files lack it, and nothing needs it
                continue
            return f"{name} is missing"
        if given[name].shape != tensor.shape:
            return f"{name} is {tuple(given[name].shape)}, not {tuple(tensor.shape)}"
    return next((f"{name} is not one of it" for name in given if name not in wanted), None)


def _efficientnet(config: VisionConfig, image_size: tuple[int, int] | None) -> Any:
    overrides = {
        "width_coefficient": config.width_coefficient,
        "depth_coefficient": config.depth_coefficient,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return EfficientNet.from_name(
            config.model, include_top=False, image_size=image_size, **given
        )
    except ValueError as error:
        raise UserError(
            f"'{config.model}' is no EfficientNet; give one of efficientnet-b0 to -b7"
        ) from error


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


def _replace_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            setattr(module, name, nn.GroupNorm(max(1, channels // GROUP_SIZE), channels, eps=1e-3))
        else:
            _replace_batch_norm(child)


def _imagenet_state(model: str) -> dict[str, Tensor]:
    """Download the weights that efficientnet-pytorch offers, or take them from torch's cache of such."""
    url = url_map[model]
    try:
        state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:  # urllib's errors are OSErrors
        raise UserError(
            f"ImageNet weights of {model} could not be downloaded ({error}); fetch {url} elsewhere, and "
            "give that file in place of imagenet"
        ) from error
    return state


def _state_from_file(path: str) -> dict[str, Tensor]:
    if not Path(path).is_file():
        raise UserError(f"vision weights '{path}' are not there; give imagenet or an existing file")
    try:
        if path.endswith(".safetensors"):
            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise _no_state_dict(path) from error
    if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
        raise _no_state_dict(path)
    return loaded


def _no_state_dict(path: str) -> UserError:
    return UserError(
        f"vision weights '{path}' cannot be read; give a PyTorch or safetensors state dict, which "
        "holds tensors by name and nothing else"
    )
