"""A batch of behaviour cloning, and its losses: one for each part of the action, and the recall loss.

The few ticks at which the gripper opens or closes decide a task, so the losses of binary parts
weight these ticks more than others (`LossConfig`). Weights of ticks apply to all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ttm.policy.cores.core import CoreState
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec
from ttm.training.augmentation import ImageChanges
from ttm.training.recall import RECALL, RecallLoss, recalling


@dataclass(frozen=True)
class TrainingBatch:
    """B windows of T ticks. The first `burn_in` ticks only prepare the memory, without loss."""

    inputs: PolicyInputs
    actions: Tensor
    """(B, T, K, P) float32, the demonstrated actions of each tick and of the K - 1 ticks after it,
    in the spec's units, as `Policy.decode_chunk` returns them."""
    valid: Tensor
    """(B, T) bool: False at padding."""
    weights: Tensor
    """(B, T, K, A) float32: weight of each binary dimension in the loss of its part."""
    tick_weights: Tensor
    """(B, T, K) float32: weight of each action in the losses of all parts; 0 where the episode ends
    before it."""
    memory_reset: Tensor
    """(B, T) bool: True where the memory is reset before the tick."""
    burn_in: int = 0
    recall_targets: Tensor | None = None
    """(B, T, C) float32, with a recall loss; NaN where it does not ask."""
    changes: Mapping[str, ImageChanges] | None = None
    """Camera -> what is still to be done to its images, where a GPU augments them."""

    def to(self, device: torch.device) -> TrainingBatch:
        """Return the same batch on `device`, with the changes of its images carried out there."""
        moved = self._each_tensor(lambda value: value.to(device, non_blocking=True))
        if moved.changes is None:
            return moved
        images = {name: moved.changes[name].applied(x) for name, x in moved.inputs.images.items()}
        return replace(moved, inputs=replace(moved.inputs, images=images), changes=None)

    def pin_memory(self) -> TrainingBatch:
        """Return the same batch in memory from which a GPU copies while it computes."""
        return self._each_tensor(lambda value: value.pin_memory())

    def _each_tensor(self, change: Callable[[Tensor], Tensor]) -> TrainingBatch:
        inputs = self.inputs.each_tensor(change)
        return replace(self, inputs=inputs, **self._own_tensors(change))

    def _own_tensors(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the tensors but those of `inputs` and `changes`, as `change` returns them."""
        return {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}

    def of_windows(self, rows: slice) -> TrainingBatch:
        """Return all ticks of some of the windows."""
        changes = self.changes and {n: each.of_windows(rows) for n, each in self.changes.items()}
        tensors = self._own_tensors(lambda value: value[rows])
        return replace(self, inputs=self.inputs.of_windows(rows), changes=changes, **tensors)

    def at_ticks(self, ticks: slice) -> TrainingBatch:
        """Return some ticks of all windows, as a batch without burn-in."""
        tensors = self._own_tensors(lambda value: value[:, ticks])
        inputs = self.inputs.at_ticks(ticks)
        return replace(self, inputs=inputs, burn_in=0, changes=None, **tensors)


def part_weights(spec: PolicySpec, weights: Tensor, tick_weights: Tensor) -> dict[str, Tensor]:
    """Return the weights of the ticks in the loss of each part, by its name, (…) each.

    weights: (…, A), which count for the dimensions of binary parts; tick_weights: (…).
    """
    return {
        part.name: tick_weights * weights[..., spec.action_slices[part.name]].amax(dim=-1)
        if part.kind == "binary"
        else tick_weights
        for part in spec.actions
    }


def weight_sums(spec: PolicySpec, batch: TrainingBatch) -> dict[str, Tensor]:
    """Return the sum of the weights over which each loss of `cloning_losses` is a mean, by its name."""
    valid = batch.valid.unsqueeze(-1).to(torch.float32)
    weights = part_weights(spec, batch.weights, batch.tick_weights)
    sums = {name: (valid * weight).sum() for name, weight in weights.items()}
    return {**sums, **dict.fromkeys(RECALL, asked(batch).sum())}


def asked(batch: TrainingBatch) -> Tensor:
    """Return at which ticks the recall loss asks, (B, T) bool."""
    if batch.recall_targets is None:
        return batch.valid
    return batch.valid & ~batch.recall_targets[..., 0].isnan()


def cloning_losses(
    policy: Policy,
    batch: TrainingBatch,
    memory: CoreState | None = None,
    recall: RecallLoss | None = None,
    portions: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], CoreState]:
    """Return part name -> scalar loss with their sum as "loss", and the memory at the end.

    memory: the memory before the first tick; None for the initial memory. A batch with a burn-in
    starts from the memory after its burn-in instead. recall: its weighted loss is a part of the
    sum, and its results are among those returned; the batch must have `recall_targets`. portions:
    of each of the `weight_sums` of a larger batch, the portion that is in `batch`, so that the losses
    of its parts add up to its own; None for a whole batch.
    """
    if batch.burn_in:
        memory = memory_after(policy, batch.at_ticks(slice(0, batch.burn_in)))
        batch = batch.at_ticks(slice(batch.burn_in, None))
    tokens, sight = policy.core_inputs(batch.inputs, memory, batch.memory_reset)
    outputs, memory = policy.core_outputs(tokens, memory, batch.memory_reset)
    memory |= sight
    raw = policy.action_head(outputs)
    weights = part_weights(policy.spec, batch.weights, batch.tick_weights)
    valid = batch.valid.unsqueeze(-1).expand_as(batch.tick_weights)
    measured = batch.inputs.proprioception
    losses = policy.loss(raw, batch.actions, measured, valid=valid, weights=weights)
    losses = _scaled(losses, portions)
    total = torch.stack(list(losses.values())).sum()
    if recall is not None and batch.recall_targets is not None:
        held = recalling(policy, tokens, outputs)
        recalled = _scaled(recall(held, batch.recall_targets, asked(batch)), portions)
        losses, total = {**losses, **recalled}, total + recall.weight * recalled["recall"]
    return {**losses, "loss": total}, memory


def _scaled(losses: dict[str, Tensor], portions: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    if portions is None:
        return losses
    return {name: loss * portions[name] for name, loss in losses.items()}


@torch.compiler.disable  # it changes the mode of the policy
@torch.no_grad()
def memory_after(policy: Policy, batch: TrainingBatch) -> CoreState:
    """Return the memory after the ticks of `batch`, which start from the initial memory.

    The policy runs without gradient and in evaluation mode, as it does on the robot.
    """
    training = policy.training
    policy.eval()
    _, memory = policy(batch.inputs, None, batch.memory_reset)
    policy.train(training)
    # Autocast caches the weights that it casts. Older versions of PyTorch (issue 65766) would reuse
    # the ones cast here, which have no gradient, for the window itself.
    torch.clear_autocast_cache()
    return memory
