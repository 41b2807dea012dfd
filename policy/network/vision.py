"""The vision network by the name of its model."""

from __future__ import annotations

from typing import get_args

from ttm.policy.checks import require_choice
from ttm.policy.network.config import VisionConfig, VisionModel
from ttm.policy.network.film_efficientnet import FilmEfficientNet
from ttm.policy.network.film_network import FilmNetwork
from ttm.policy.network.film_resnet import DEPTHS as RESNETS
from ttm.policy.network.film_resnet import FilmResNet
from ttm.policy.network.presets import PolicyConfig
from ttm.policy.spec import PolicySpec


def shared_vision(spec: PolicySpec, config: PolicyConfig) -> FilmNetwork | None:
    """Return the network that all cameras of a robot share, or None for a robot without cameras."""
    if not spec.cameras:
        return None
    sizes = {(camera.height, camera.width) for camera in spec.cameras}
    common_size = next(iter(sizes)) if len(sizes) == 1 else None
    return build_vision(config.vision, config.language_size, common_size)


def build_vision(
    config: VisionConfig, condition_size: int, image_size: tuple[int, int] | None
) -> FilmNetwork:
    """Return the network of `config.model`.

    condition_size: E, the width of the code of the instruction. image_size: (H, W) of all cameras, or
    None if they differ. Raises `UserError` if there is no such model, or its weights do not fit.
    """
    require_choice("the vision model", config.model, get_args(VisionModel))
    if config.model in RESNETS:
        return FilmResNet(config, condition_size)
    return FilmEfficientNet(config, condition_size, image_size)
