"""The losses and gradients of a batch that several processes share, or that is taken in parts.

Every loss is a weighted mean over the whole batch. Each part computes its portion of it, by the
weights that it holds, so that the portions and their gradients add up to those of the batch,
however unequal the parts are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.network.policy import Policy
from ttm.training.cloning.batches import TrainingBatch
from ttm.training.cloning.loop.compiled import compile_module, kept
from ttm.training.cloning.losses import cloning_losses, weight_sums
from ttm.training.cloning.processes.group import Processes, shares
from ttm.training.cloning.recall.recall_loss import RecallLoss

LEAST_WEIGHT = 1e-6
"""Where the weights of a whole batch add up to less, a loss is 0."""

Losses = dict[str, Tensor]


class _CloningLosses(nn.Module):
    """`cloning_losses` as a module, the form in which Fabric takes what processes share."""

    def __init__(self, policy: Policy, recall: RecallLoss | None) -> None:
        super().__init__()
        self.policy, self.recall = policy, recall

    def forward(
        self, batch: TrainingBatch, memory: CoreState | None, portions: Mapping[str, Tensor] | None
    ) -> tuple[Losses, CoreState]:
        losses, memory = cloning_losses(self.policy, batch, memory, self.recall, portions)
        # No gradient flows beyond the batch, and no process waits for one.
        return losses, {name: value.detach() for name, value in memory.items()}


class Gradients:
    """Computes the losses of a batch, and their gradients, which all processes then have."""

    def __init__(
        self,
        policy: Policy,
        recall: RecallLoss | None,
        fabric: Fabric,
        processes: Processes,
        parts: int = 1,
        *,
        compiles: bool = False,
        same_shapes: bool = False,
    ) -> None:
        """Make what computes the losses of `policy` and `recall`.

        parts: into how many parts each process cuts its windows, which it takes in turn. compiles: whether
        the losses are computed by `torch.compile`. same_shapes: whether all batches have the same shapes.
        """
        self._spec, self._fabric, self._processes, self._parts = (
            policy.spec,
            fabric,
            processes,
            parts,
        )
        losses, self._compiles = _CloningLosses(policy, recall), compiles
        if compiles:
            graphs = same_shapes and parts == processes.count == 1
            compile_module(losses, fabric.device, graphs=graphs)
        self._losses = fabric.strategy.setup_module(losses)

    def of(self, batch: TrainingBatch, memory: CoreState | None) -> tuple[Losses, CoreState]:
        """Add the gradients of the whole batch to those of the weights.

        batch: the windows of this process; memory: theirs before the first tick. Returns the
        portions of the losses that are of these windows, and their memory after the last tick.
        """
        rows = shares(len(batch.valid), self._parts)
        parts = [batch] if len(rows) == 1 else [batch.of_windows(each) for each in rows]
        done = [
            self._of_part(part, _of_windows(memory, each), portions, last=each == rows[-1])
            for part, each, portions in zip(parts, rows, self._portions(parts), strict=True)
        ]
        losses, memories = zip(*done, strict=True)
        if len(done) == 1:
            return losses[0], memories[0]
        return (
            {name: torch.stack(values).sum(0) for name, values in _by_name(losses)},
            {name: torch.cat(values) for name, values in _by_name(memories)},
        )

    def _of_part(
        self,
        part: TrainingBatch,
        memory: CoreState | None,
        portions: Mapping[str, Tensor] | None,
        *,
        last: bool,
    ) -> tuple[Losses, CoreState]:
        here = part.to(self._fabric.device)
        if self._compiles:
            torch.compiler.cudagraph_mark_step_begin()
        with self._exchanging(last):
            with self._fabric.autocast():
                losses, memory = self._losses(here, memory, portions)
            # The processes take the mean of their gradients, and these are to be added up.
            self._fabric.backward(losses["loss"] * self._processes.count)
        return (kept(losses), kept(memory)) if self._compiles else (losses, memory)

    def _exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Return a context in which gradients are exchanged only at the last part of a batch."""
        if last or not isinstance(self._losses, DistributedDataParallel):
            return nullcontext()
        waiting: AbstractContextManager[None] = self._losses.no_sync()
        return waiting

    def _portions(self, parts: Sequence[TrainingBatch]) -> list[dict[str, Tensor] | None]:
        """Return for each part which portion of each loss it has; None for a whole batch."""
        if len(parts) == self._processes.count == 1:
            return [None]
        sums = [weight_sums(self._spec, part) for part in parts]
        held = {name: torch.stack(values).double() for name, values in _by_name(sums)}
        totals = self._processes.sum(torch.stack([value.sum() for value in held.values()]))
        portions = {
            name: (value / total.clamp_min(LEAST_WEIGHT)).float()
            for (name, value), total in zip(held.items(), totals, strict=True)
        }
        return [
            {name: value[index] for name, value in portions.items()} for index in range(len(parts))
        ]


def _of_windows(memory: CoreState | None, rows: slice) -> CoreState | None:
    return None if memory is None else {name: value[rows] for name, value in memory.items()}


def _by_name(several: Sequence[dict[str, Tensor]]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each name with its values."""
    for name in several[0]:
        yield name, [each[name] for each in several]
