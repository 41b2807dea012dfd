"""The training loop of the studies: Adam with clipped gradients, on given batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MAX_GRADIENT_NORM = 1.0

Samples = tuple[Tensor, ...]
"""Tensors of the same first dimension, one row for each sample; the arguments of a loss."""


@dataclass(frozen=True)
class Progress:
    """The state of a training after some steps."""

    steps: int
    loss: float
    """Loss of the newest batch."""
    mean_loss: float
    """Mean loss of the batches since the last report."""
    seconds: float
    """Time of training so far, without what the caller did between two reports."""


def fit(
    model: nn.Module,
    batches: Iterable[Samples],
    loss: Callable[..., Tensor],
    *,
    learning_rate: float | Callable[[int], float],
    report_every: int = 50,
) -> Iterator[Progress]:
    """Train on `batches` until they end or the caller stops iterating.

    Yields every `report_every` steps and at the end. The model is in training mode during the
    steps, whatever the caller does in between.

    loss: called with the model and the tensors of a batch; returns a scalar. learning_rate: Adam's
    rate, constant or as a function of the step, counted from 0.
    """
    rate = learning_rate if callable(learning_rate) else lambda step: learning_rate
    optimizer = torch.optim.Adam(model.parameters(), rate(0))
    seconds, begun, steps = 0.0, time.perf_counter(), 0
    losses: list[Tensor] = []

    def report() -> Progress:
        values = [float(value) for value in losses]
        losses.clear()
        return Progress(steps, values[-1], sum(values) / len(values), seconds)

    model.train()
    for steps, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = rate(steps - 1)
        value = loss(model, *batch)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        losses.append(value.detach())
        if steps % report_every == 0:
            seconds += time.perf_counter() - begun
            yield report()
            begun = time.perf_counter()
            model.train()
    if losses:
        seconds += time.perf_counter() - begun
        yield report()


def within(batches: Iterable[Samples], seconds: float) -> Iterator[Samples]:
    """Yield from `batches` until the time is up, but at least once.

    The time begins when the first batch is asked for.
    """
    end = time.perf_counter() + seconds
    for batch in batches:
        yield batch
        if time.perf_counter() >= end:
            return


def repeated(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Samples]:
    """Yield batches of the same samples without end, in a new order after each pass over them."""
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(len(samples[0]), generator=generator)])
        rows, order = order[:batch_size], order[batch_size:]
        yield tuple(part[rows] for part in samples)
