"""Initial weights of vision networks: random, ImageNet's, or those of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ttm.policy.errors import UserError
from ttm.policy.network.config import VisionConfig


def load_network_weights(
    network: nn.Module,
    config: VisionConfig,
    *,
    imagenet: Callable[[], str],
    classifier: str,
    package: str,
) -> str:
    """Load the weights that `config.weights` names into a network.

    imagenet: returns where ImageNet's are, a URL or a file. classifier: the prefix of the names of the
    last layer, which is left out. package: what names the parameters so.

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
        _imagenet_state(config.model, imagenet())
        if config.weights == "imagenet"
        else _state_from_file(config.weights)
    )
    state = {name: value for name, value in state.items() if not name.startswith(classifier)}
    misfit = _first_misfit(network.state_dict(), state)
    if misfit is not None:
        raise UserError(
            f"vision weights '{config.weights}' do not fit {config.model} (width {config.width_coefficient}, "
            f"depth {config.depth_coefficient}): {misfit}; give weights of the same network, with the names "
            f"that {package} gives them"
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


def _imagenet_state(model: str, url: str) -> dict[str, Tensor]:
    """Read weights from a file, download them, or take them from torch's cache of such."""
    if "://" not in url:
        return _state_from_file(url)
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
