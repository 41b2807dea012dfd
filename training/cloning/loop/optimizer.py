"""AdamW (Loshchilov and Hutter 2019) with decay for matrices and kernels only.

Biases, normalisations and embeddings do not decay.
"""

from __future__ import annotations

import torch
from torch import nn

from ttm.training.cloning.settings.groups import OptimizerConfig


def build_optimizer(
    model: nn.Module, weight_decay: float, config: OptimizerConfig | None = None
) -> torch.optim.AdamW:
    """Return the optimiser of the weights that require a gradient.

    Its learning rate is 0 until `set_learning_rate` sets it, which the trainer does before every
    step.

    config: None for its defaults.
    """
    config = OptimizerConfig() if config is None else config
    named = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    decaying = [parameter for name, parameter in named if _decays(name, parameter)]
    others = [parameter for name, parameter in named if not _decays(name, parameter)]
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=config.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return name.endswith("weight") and parameter.dim() >= 2
