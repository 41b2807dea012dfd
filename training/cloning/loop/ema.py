"""An exponential moving average of the weights (Polyak averaging).

The averaged weights are what is validated, saved and run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    """Holds a copy of a model, `model`, whose weights are the moving average of the trained ones.

    The decay is at most (1 + k) / (10 + k) after k updates, so that a short training is not
    averaged with its random start.
    """

    def __init__(self, trained: Model, decay: float = 0.999) -> None:
        self.decay = decay
        self.updates = 0
        self.model: Model = copy.deepcopy(trained)
        self.model.eval().requires_grad_(False)
        self._pairs = _matching_floats(self.model, trained)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the trained weights; call this after every optimiser step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averaged, trained = self._pairs
        torch._foreach_lerp_(averaged, trained, 1 - decay)


def _matching_floats(averaged: nn.Module, trained: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the saved floating-point tensors of both models, in the same order.

    Buffers that are not saved are constants, which may be infinite, and are left out.
    """
    mine, theirs = averaged.state_dict(), trained.state_dict()
    names = [name for name, value in mine.items() if value.is_floating_point()]
    return [mine[name] for name in names], [theirs[name] for name in names]


@torch.no_grad()
def calibrate_batch_norm(model: nn.Module, forwards: Iterable[object]) -> None:
    """Replace BatchNorm's running statistics by those of the weights of `model` on some batches.

    The running statistics of training belong to the trained weights and do not fit their average
    (Izmailov et al. 2018, stochastic weight averaging). Drawing an item from `forwards` must run
    `model` once. Nothing is drawn for a model without BatchNorm.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.train()  # only the norms: dropout elsewhere stays off
    for _ in forwards:
        pass
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
