"""The losses of behaviour cloning on one batch, and the memory that they start from.

The few ticks at which the gripper opens or closes decide a task, so the losses of binary parts
weight these ticks more than others (`LossConfig`). Weights of ticks apply to all parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.reader import EpisodeReader, Floats
from ttm.policy.cores.core import CoreState
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec
from ttm.training.batches import TrainingBatch
from ttm.training.recall import RECALL, RecallLoss


def part_weights(spec: PolicySpec, weights: Tensor, tick_weights: Tensor) -> dict[str, Tensor]:
    """Return the weights of the ticks in the loss of each part.

    weights: (..., A), which count for the dimensions of binary parts; tick_weights: (...), which
    count for all parts -> part name -> (...), where (...) is (B, T, K) for chunks.
    """
    return {
        part.name: tick_weights * weights[..., spec.action_slices[part.name]].amax(dim=-1)
        if part.kind == "binary"
        else tick_weights
        for part in spec.actions
    }


def weight_sums(spec: PolicySpec, batch: TrainingBatch) -> dict[str, Tensor]:
    """Return the sum of the weights over which each loss of `cloning_losses` is a mean.

    Part name -> 0-d tensor, and so for the results of the recall loss.
    """
    valid = batch.valid.unsqueeze(-1).to(torch.float32)
    weights = part_weights(spec, batch.weights, batch.tick_weights)
    sums = {name: (valid * weight).sum() for name, weight in weights.items()}
    return {**sums, **dict.fromkeys(RECALL, valid.sum())}


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
    outputs, memory = policy.core_outputs(batch.inputs, memory, batch.memory_reset)
    raw = policy.action_head(outputs)
    weights = part_weights(policy.spec, batch.weights, batch.tick_weights)
    valid = batch.valid.unsqueeze(-1).expand_as(batch.tick_weights)
    measured = batch.inputs.proprioception
    losses = policy.loss(raw, batch.actions, measured, valid=valid, weights=weights)
    losses = _scaled(losses, portions)
    total = torch.stack(list(losses.values())).sum()
    if recall is not None and batch.recall_targets is not None:
        told = _scaled(recall(outputs, batch.recall_targets, batch.valid), portions)
        losses, total = {**losses, **told}, total + recall.weight * told["recall"]
    return {**losses, "loss": total}, memory


def _scaled(losses: dict[str, Tensor], portions: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    if portions is None:
        return losses
    return {name: loss * portions[name] for name, loss in losses.items()}


@torch.compiler.disable  # it changes the mode of the policy
@torch.no_grad()
def memory_after(policy: Policy, batch: TrainingBatch) -> CoreState:
    """Return the memory after the ticks of `batch`, which start from the initial memory.

    The policy runs without gradient and in evaluation mode, as it does on the robot: without
    dropout, and with BatchNorm's running statistics, which do not change.
    """
    training = policy.training
    policy.eval()
    _, memory = policy.core_outputs(batch.inputs, None, batch.memory_reset)
    policy.train(training)
    # Autocast caches the weights that it casts. Older versions of PyTorch (issue 65766) would reuse
    # the ones cast here, which have no gradient, for the window itself.
    torch.clear_autocast_cache()
    return memory


@dataclass(frozen=True)
class PredictedStatistics:
    """Statistics of actions in the form in which a policy predicts them, (P,) each, in the spec's units."""

    mean: Floats
    std: Floats


def predicted_statistics(
    policy: Policy, episodes: Iterable[EpisodeReader]
) -> PredictedStatistics | None:
    """Return the statistics of all actions of the chunks that begin at each tick of `episodes`.

    Chunks of a policy that is told of delays go on for the longest one, since all delays are learned.
    None for a policy that predicts actions in the robot's form, whose statistics are those of the data.
    """
    if not policy.relative:
        return None
    count, sums, squares = 0, np.zeros(()), np.zeros(())
    for actions in _predicted(policy, episodes):
        count += len(actions)
        sums, squares = sums + actions.sum(axis=0), squares + np.square(actions).sum(axis=0)
    mean = sums / count
    std = policy.relative.even(np.sqrt(np.maximum(squares / count - np.square(mean), 0)))
    return PredictedStatistics(mean.astype(np.float32), std.astype(np.float32))


def _predicted(
    policy: Policy, episodes: Iterable[EpisodeReader]
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the k-th actions of the chunks of each episode, (n, P), for each k.

    Raises `UserError` if what is said to be rotations are none.
    """
    delay_ticks = round(policy.config.longest_delay_s / policy.spec.control_dt_s)
    form = policy.relative
    for episode in episodes:
        vectors = {v.name: episode.proprioception(v.name) for v in policy.spec.proprioception}
        measured = {name: torch.from_numpy(values).double() for name, values in vectors.items()}
        commands, ticks = torch.from_numpy(episode.actions).double(), episode.num_samples
        form.require_rotations(commands, measured, f"{episode.path}: {episode.name}")
        plans = form.plan(form.averageable(commands), measured)
        for ahead in range(min(policy.config.chunk + delay_ticks, ticks)):
            start = {name: values[: ticks - ahead] for name, values in measured.items()}
            yield form.predicted(plans[ahead:], start).numpy()
