"""An exponential moving average of the weights: what is validated, saved and run (Polyak averaging)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    """Holds a second copy of a model, `model`, whose weights follow the trained ones slowly.

    The decay warms up as (1 + k) / (10 + k) after k updates, so that a short training is not an average
    with its random start.
    """

    def __init__(self, trained: Model, decay: float = 0.999) -> None:
        self.decay = decay
        self.updates = 0
        self.model: Model = copy.deepcopy(trained)
        self.model.eval().requires_grad_(False)
        self._pairs = _matching_floats(self.model, trained)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the trained weights; call once after every optimiser step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averaged, trained = self._pairs
        torch._foreach_lerp_(averaged, trained, 1 - decay)


def _matching_floats(averaged: nn.Module, trained: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The floating-point tensors of both models, in the same order. What is not saved is constant, and may be inf."""
    mine, theirs = averaged.state_dict(), trained.state_dict()
    names = [name for name, value in mine.items() if value.is_floating_point()]
    return [mine[name] for name in names], [theirs[name] for name in names]


@torch.no_grad()
def calibrate_batch_norm(model: nn.Module, forwards: Iterable[object]) -> None:
    """Replaces BatchNorm's running statistics by those that `model`'s own weights give on some batches.

    The running statistics of training belong to the trained weights, and an average of them belongs to no
    weights at all (Izmailov et al. 2018, stochastic weight averaging). Each item drawn from `forwards` must
    run `model` once; a model without BatchNorm draws none.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.train()  # the norms alone: dropout elsewhere stays off
    for _ in forwards:
        pass
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
