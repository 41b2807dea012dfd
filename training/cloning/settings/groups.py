"""The options of `ttm train` that one part of the training takes as a whole.

This module imports no torch, so that the command line can be built without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttm.training.common.schedule import WarmupCosine

Memory = Literal["zero", "carry", "burn-in"]
Window = int | Literal["episode"]
Shuffle = int | Literal["auto", "all"]
LoggerName = Literal["tensorboard", "csv", "wandb"]
NO_WEIGHTS = "none"
"""The value of --vision-weights for random ones."""


@dataclass(frozen=True)
class MemoryStartConfig:
    """What the memory holds at the first tick of a training window."""

    memory: Memory = "zero"
    """zero: the initial memory, as in the paper. carry: the memory that the preceding window of the
    same episode left. burn-in: the memory after the --burn-in ticks before the window, which run
    without gradient."""
    burn_in: int = 8
    """With --memory burn-in: number of ticks that run before each window (fewer near the start of
    an episode)."""


@dataclass(frozen=True)
class InputDropoutConfig:
    """Inputs that are hidden from the network, for whole windows drawn at random."""

    previous_action_dropout: float = 0.5
    """Portion of windows without previous actions, so that the policy does not learn to repeat
    itself."""
    proprioception_dropout: float = 0.1
    """Portion of windows without proprioception."""


@dataclass(frozen=True)
class FrozenVisionConfig:
    """Training on features of vision that are computed once."""

    freeze_vision: bool = False
    """With --init or --vision-weights: keep the vision that one of them gives (EfficientNet, FiLM and
    the code of the instruction that FiLM gets). Its features are computed once for each distinct frame
    and kept in memory, so that a step takes a fraction of the time. TokenLearner and all else is
    trained."""
    augmented_versions: int = 1
    """With --freeze-vision: versions of each episode's frames that are kept, as recorded and
    augmented ones, of which each window takes one at random. 1: as recorded, without augmentation.
    Time at the start and memory grow with it."""


@dataclass(frozen=True)
class LossConfig:
    """Weights of ticks in the loss, and the recall loss.

    The first four multiply each other and the `loss_weights` of the episodes.
    """

    transition_weight: float = 5.0
    """Weight of the ticks at and next to a change of a binary command, such as the gripper's; 1
    elsewhere."""
    weigh_changes: float = 1.0
    """Weight of the ticks at which the action changes: a dimension differs from the tick before by
    more than its standard deviation in the data."""
    weigh_starts: float = 1.0
    """Weight of the first three ticks after a stand-still, which is three ticks or more in which no
    proprioception moves by more than 0.02 of its standard deviations."""
    weigh_policy: float = 1.0
    """Weight of the ticks at which a policy drove, in episodes of which it is recorded when a person took
    over. 0: only what the person did is imitated, as in HG-DAgger."""
    recall_weight: float = 0.0
    """With --freeze-vision: weight of the recall loss, which teaches the memory to keep what has
    been seen and is not seen now, without labels. 0: none; 2 is a good value."""


@dataclass(frozen=True)
class AugmentationConfig:
    """Limits of the image augmentation; every change is drawn uniformly in both directions."""

    shift: float = 0.06
    """Largest shift, as a portion of the image's side."""
    brightness: float = 0.2
    """Largest relative change of all values."""
    contrast: float = 0.2
    """Largest relative change of the distance from the window's mean grey."""
    saturation: float = 0.2
    """Largest relative change of the colourfulness."""
    hue_rad: float = 0.15
    """Largest rotation of the colour circle, in radians."""


@dataclass(frozen=True)
class OptimizationConfig:
    """The optimiser (AdamW) and the average of the weights."""

    learning_rate: float | None = None
    """Peak learning rate. Default: 1e-3 for tiny, 3e-4 for base and paper; a third of that with
    --init."""
    weight_decay: float = 0.05
    """Weight decay of AdamW; normalisations and biases have none."""
    average_decay: float = 0.999
    """Decay of the exponential moving average of the weights. The checkpoints hold the average."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, the limit of its gradient, and the course of its learning rate."""

    betas: tuple[float, float] = (0.9, 0.99)
    """Decays of the averages of the gradient and of its square. The latter follows faster than by
    PyTorch's default, because trainings here are a few thousand steps."""
    epsilon: float = 1e-8
    """What is added to the root of the averaged square, against division by zero."""
    gradient_limit: float = 1.0
    """Largest norm of the gradient of all weights together; a longer gradient is scaled down to it."""
    warmup_steps: int = WarmupCosine.warmup_steps
    """Steps in which the learning rate rises to its peak."""
    longest_warmup: float = WarmupCosine.longest_warmup
    """Portion of the training after which the warm-up ends at the latest."""
    floor: float = WarmupCosine.floor
    """Last learning rate of the cosine, as a portion of the peak."""


@dataclass(frozen=True)
class ProcessesConfig:
    """The devices that share each batch. What is trained does not depend on them."""

    devices: int | None = None
    """Devices of each machine that share each batch, one process for each: GPUs, or with --device cpu
    processes. Default: as many as torchrun or SLURM has started processes, otherwise 1."""
    nodes: int | None = None
    """Machines. Default: as many as torchrun or SLURM has started the training on, otherwise 1."""
    accumulate: int = 1
    """Parts into which each device cuts its windows of a batch. It takes them in turn and adds up
    their gradients, which needs less memory. BatchNorm (base, paper) takes its statistics from each
    part; all else stays the same."""


@dataclass(frozen=True)
class KeepingConfig:
    """When a training ends early, and what it keeps and logs."""

    early_stopping: int | None = None
    """End after this many validations in a row without a lower error. Default: train to the end."""
    save_every: int | None = None
    """Also write a checkpoint, OUT/checkpoints/step_….safetensors, every so many steps."""
    keep: int | None = None
    """With --save-every: keep only so many of these checkpoints, the newest ones. Default: all."""
    logger: tuple[LoggerName, ...] = ("tensorboard",)
    """Where losses, speeds and errors are logged, one or more: tensorboard, csv (OUT/csv/), wandb
    (Weights & Biases, offline in OUT/wandb/ unless WANDB_MODE says otherwise)."""
