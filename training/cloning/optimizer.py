"""AdamW (Loshchilov and Hutter 2019): matrices and kernels decay; biases, normalisations and embeddings do not."""

from __future__ import annotations

import torch
from torch import nn

BETAS = (0.9, 0.99)
"""The second moment follows faster than by default, since trainings here are a few thousand steps."""


def build_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Its learning rate is set before every step (see `set_learning_rate`)."""
    named = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    decaying = [parameter for name, parameter in named if _decays(name, parameter)]
    others = [parameter for name, parameter in named if not _decays(name, parameter)]
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """For all groups alike."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return name.endswith("weight") and parameter.dim() >= 2
