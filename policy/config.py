"""The configurations of vision and action head, and the names of presets and engines.

Nothing here imports PyTorch, so that options of commands can be made from these classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VisionModel = Literal[
    "efficientnet-b0", "efficientnet-b1", "efficientnet-b2", "efficientnet-b3", "efficientnet-b4",
    "efficientnet-b5", "efficientnet-b6", "efficientnet-b7", "efficientnet-lite0", "resnet18", "resnet34",
]  # fmt: skip
"""The names of the vision networks."""
PresetName = Literal["tiny", "base", "paper"]
"""tiny: about 1 million parameters, for CPUs. base: EfficientNet-B0. paper: B3 and the paper's sizes."""
EngineName = Literal["auto", "torch", "openvino"]
"""auto: OpenVINO on a CPU, PyTorch on a GPU."""
Precision = Literal["float32", "bfloat16"]
"""bfloat16: 8 bits of mantissa in matrix products and convolutions, and half the bytes of weights."""
LONGEST_DELAY_S = 10.0
"""The longest delay between observation and command that a policy can be trained or run with, in seconds."""
ACTOR_HELP = (
    "A policy of your own in place of a checkpoint. MODULE:MAKE: make(spec), or make(), returns an object "
    "with reset(instruction) and act(observation). ws://HOST:PORT: a policy that ttm serve runs; the "
    "environment variable TTM_TOKEN holds its token. lerobot:FOLDER or robomimic:FILE: a checkpoint of "
    "these projects."
)


@dataclass(frozen=True)
class VisionConfig:
    """Which network is used, how much of it, and its initial weights."""

    model: VisionModel = "efficientnet-b0"
    width_coefficient: float | None = None
    """Of an EfficientNet: channels as a multiple of B0's; None for those of the model."""
    depth_coefficient: float | None = None
    """Of an EfficientNet: blocks per stage as a multiple of B0's; None for those of the model."""
    reduction: Literal[8, 16, 32] = 32
    """Total stride after which the network is cut: at 8, a 64x64 frame gives an 8x8 feature map."""
    norm: Literal["batch", "group"] = "batch"
    """group: GroupNorm. The batch statistics of few, correlated frames differ from the running
    averages that are used in control."""
    weights: str = "random"
    """random, imagenet (downloaded), or a state dict (.pth, .safetensors)."""


@dataclass(frozen=True)
class ActionHeadConfig:
    """How actions are predicted, and the loss."""

    kind: Literal["continuous", "bins"] = "continuous"
    """Regression of continuous dimensions, or their classification into bins."""
    loss: Literal["huber", "l1"] = "huber"
    """Loss of the kind "continuous", on normalised actions."""
    huber_delta: float = 0.2
    """Errors below so many deviations count squared. The loss is divided by it: its slope is 1 above."""
    num_bins: int = 256
    """Bins per dimension, for the kind "bins"."""
    bin_range: float = 4.0
    """The bins cover so many deviations to either side of the mean."""
    hidden_size: int = 256
    """Hidden width of the head's MLP."""
