"""Errors on held-out episodes, run as on the robot: whole, with the memory carried.

Two baselines that look at nothing are evaluated too: the mean action of the training episodes, and
the previous action repeated. The previous action that the network gets is the demonstrator's, so a
low error alone does not show a good policy; `without_previous_action` hides that input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.dataset import LEAST_DEVIATION, EpisodeDataset, VectorStatistics
from ttm.datasets.windows import WindowBatch, WindowDataset, policy_inputs
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec
from ttm.training.distributed import Processes
from ttm.training.frozen_vision import EpisodeFeatures, without_cameras

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ActionErrors:
    """The errors of one predictor over some ticks."""

    normalized: float
    """Root mean square over ticks and action dimensions of (predicted - demonstrated) / s, where s is the
    standard deviation of the dimension over the training episodes; dimensions that never moved in them
    (`LEAST_DEVIATION`) are left out. Of all constant predictions the mean action has the least."""
    parts: dict[str, float]
    """Part -> mean absolute error in the part's unit; for a binary part the portion of wrong
    ticks."""
    ticks: int


class ErrorSum:
    """Accumulates errors over batches."""

    def __init__(self, spec: PolicySpec, scale: Floats) -> None:
        """scale: (A,) standard deviations of the training actions."""
        self.spec, self.scale, self.ticks = spec, scale, 0
        self._squares, self._absolute = np.zeros(spec.action_size), np.zeros(spec.action_size)

    def add(self, predicted: Floats, actions: Floats) -> None:
        """Add n ticks (n, A) in the spec's units; binary dimensions are means of `Policy.decode`."""
        error = predicted.astype(np.float64) - actions
        self._squares += np.square(error).sum(axis=0)
        binary, thresholds = self.spec.binary_mask, self.spec.thresholds
        wrong = (predicted > thresholds) != (actions > thresholds)
        self._absolute += np.where(binary, wrong, np.abs(error)).sum(axis=0)
        self.ticks += len(actions)

    def over(self, add_up: Callable[[Tensor], Tensor]) -> ErrorSum:
        """Return the sum of several of these, given a function that adds up the same tensor of each."""
        mine = np.concatenate([self._squares, self._absolute, [self.ticks]])
        whole, size = ErrorSum(self.spec, self.scale), self.spec.action_size
        whole._squares, whole._absolute, ticks = np.split(
            add_up(torch.from_numpy(mine)).numpy(), (size, 2 * size)
        )
        whole.ticks = int(ticks[0])
        return whole

    def result(self) -> ActionErrors:
        """Return the means over all ticks added so far."""
        moved = self.scale > LEAST_DEVIATION
        mean_squares = self._squares[moved] / self.ticks / np.square(self.scale[moved])
        mean_absolute = self._absolute / self.ticks
        parts = {
            name: float(mean_absolute[part].mean())
            for name, part in self.spec.action_slices.items()
        }
        return ActionErrors(float(np.sqrt(mean_squares.mean())), parts, self.ticks)


EPISODES_AT_ONCE = 8
TICKS_AT_ONCE = 32
"""Limits on the memory of one forward pass; results do not depend on them."""


class EpisodeErrors:
    """Evaluates predictors on every tick of some episodes."""

    def __init__(
        self,
        episodes: EpisodeDataset,
        statistics: VectorStatistics,
        resize_to: dict[str, tuple[int, int]],
        *,
        most_episodes: int = 50,
        features_of: Callable[[EpisodeDataset], EpisodeFeatures] | None = None,
        processes: Processes = Processes(),  # noqa: B008 (frozen)
    ) -> None:
        """Choose at most `most_episodes` of `episodes`, evenly spread, to limit the time.

        statistics: of the actions of the training episodes. features_of: returns the features of frozen
        vision; None for frames. processes: those that evaluate together; all of them have the result.
        """
        episodes = episodes[:: -(-len(episodes) // most_episodes)]
        self.features = None if features_of is None else features_of(episodes)
        self.windows = WindowDataset(  # one for each whole episode
            episodes if features_of is None else without_cameras(episodes),
            max((episode.num_samples for episode in episodes), default=1),
            pad="none",
            resize_to=resize_to if features_of is None else {},
            copies=processes.on_machine,
        )
        self.statistics, self.processes = statistics, processes

    def mean_action(self) -> ActionErrors:
        """Return the errors of always predicting the mean action of the training episodes."""
        mean = self.statistics.mean
        return self._errors(lambda batch: np.broadcast_to(mean, batch["actions"].shape))

    def previous_action(self) -> ActionErrors:
        """Return the errors of repeating the previous action; at first the mean action stands in for it."""
        mean = torch.from_numpy(self.statistics.mean)

        def repeated(batch: WindowBatch) -> Floats:
            known = batch["previous_action_valid"].unsqueeze(2)
            return torch.where(known, batch["previous_action"], mean).numpy()

        return self._errors(repeated)

    def policy(self, policy: Policy, *, without_previous_action: bool = False) -> ActionErrors:
        """Return the errors of a policy, which must be in evaluation mode."""
        form = policy.relative

        def predicted(batch: WindowBatch) -> Floats:
            inputs = policy_inputs(batch)
            if self.features is not None:
                inputs = self.features.into(inputs, batch["dataset_tick"])
            actions = _predict(policy, inputs, without_previous_action)
            # One rotation is written in several ways, such as by two quaternions; that is no error.
            return form.nearest(actions, batch["actions"]).numpy() if form else actions.numpy()

        return self._errors(predicted)

    def _errors(self, predict: Callable[[WindowBatch], Floats]) -> ActionErrors:
        total = ErrorSum(self.windows.spec, self.statistics.std)
        every = torch.arange(len(self.windows)).split(EPISODES_AT_ONCE)
        for indices in self.processes.mine(every):
            batch = self.windows.gather(indices)
            valid, actions, predicted = batch["valid"].numpy(), batch["actions"], predict(batch)
            total.add(predicted[valid], actions.numpy()[valid])
        return total.over(self.processes.sum).result()


@torch.no_grad()
def _predict(policy: Policy, inputs: PolicyInputs, without_previous_action: bool) -> Tensor:
    """Return actions (B, T, A) in the spec's units; the memory goes through all T ticks."""
    if without_previous_action:
        nowhere = torch.zeros_like(inputs.previous_action_valid)
        inputs = replace(inputs, previous_action_valid=nowhere)
    device, state, decoded = next(policy.parameters()).device, None, []
    for ticks in torch.arange(inputs.previous_action.shape[1]).split(TICKS_AT_ONCE):
        some = inputs.at_ticks(slice(int(ticks[0]), int(ticks[-1]) + 1)).to(device)
        raw, state = policy(some, state)
        decoded.append(policy.decode(raw, some.proprioception).float().cpu())
    return torch.cat(decoded, dim=1)
