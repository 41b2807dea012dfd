"""The training loop of the studies: Adam, clipped gradients, fresh or repeated batches, stops when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MAX_GRADIENT_NORM = 1.0

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Progress:
    """Where a training stands after some steps."""

    steps: int
    loss: float
    """Of the newest batch."""
    seconds: float
    """Since the training began, without what the caller did between two of these (evaluation, printing)."""


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[..., Tensor],
    *,
    learning_rate: float,
    report_every: int = 50,
) -> Iterator[Progress]:
    """Trains on `batches` until they end or the caller stops asking; yields every `report_every` steps and at the end.

    loss: called with the model and a batch's tensors, gives a scalar. The model is in training mode in between.
    """
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    seconds, begun, steps, value = 0.0, time.perf_counter(), 0, torch.tensor(torch.nan)
    model.train()
    for steps, batch in enumerate(batches, start=1):
        value = loss(model, *batch)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        if steps % report_every == 0:
            seconds += time.perf_counter() - begun
            yield Progress(steps, float(value.detach()), seconds)
            begun = time.perf_counter()
            model.train()
    if steps % report_every:
        yield Progress(steps, float(value.detach()), seconds + time.perf_counter() - begun)


def within(batches: Iterable[Batch], seconds: float) -> Iterator[Batch]:
    """`batches` until so much time has gone since the first was asked for; that one always comes."""
    end = time.perf_counter() + seconds
    for batch in batches:
        yield batch
        if time.perf_counter() >= end:
            return


def repeated(samples: Batch, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Batches of the same samples for ever, in another order each time round; tensors are (samples, ...)."""
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(len(samples[0]), generator=generator)])
        rows, order = order[:batch_size], order[batch_size:]
        yield tuple(part[rows] for part in samples)
