"""Errors on held-out episodes, run as on the robot: whole, with the memory carried.

Two baselines that look at nothing are evaluated too: the mean action of the training episodes, and
the previous action repeated. The previous action that the network gets is the demonstrator's, so a
low error alone does not show a good policy; `without_previous_action` hides that input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.statistics import VectorStatistics
from ttm.datasets.windows.window_dataset import WindowBatch, WindowDataset
from ttm.policy.network.inputs import PolicyInputs
from ttm.policy.network.policy import Policy
from ttm.training.cloning.frozen_vision.feature_cache import (
    EpisodeFeatures,
    FeatureCache,
    without_cameras,
)
from ttm.training.cloning.processes.group import Processes
from ttm.training.common.recorded.action_errors import ActionErrors, ErrorSum, Floats
from ttm.training.common.recorded.window_inputs import policy_inputs

EPISODES_AT_ONCE = 8
TICKS_AT_ONCE = 32
"""Limits on the memory of one forward pass; results do not depend on them."""


@dataclass
class EpisodeErrors:
    """Evaluates predictors on every tick of some episodes."""

    windows: WindowDataset
    """One window for each whole episode."""
    statistics: VectorStatistics
    """Statistics of the training episodes' actions."""
    features: EpisodeFeatures | None = None
    """Features of frozen vision, in place of the images of `windows`."""
    most_episodes: int | None = None
    """Evaluate only so many episodes, the first ones; None for all."""
    processes: Processes = field(default_factory=Processes)
    """Those that evaluate together; all of them have the result."""
    data_sets: Sequence[str] = ()
    """The name of the data set of each episode, to tell the errors of each; () for one data set."""

    @classmethod
    def of(
        cls,
        episodes: EpisodeDataset,
        statistics: VectorStatistics,
        resize_to: dict[str, tuple[int, int]],
        most_episodes: int = 50,
        cache: FeatureCache | None = None,
        data_sets: Sequence[str] = (),
        processes: Processes | None = None,
    ) -> EpisodeErrors:
        """Choose at most `most_episodes` of `episodes`, evenly spread, to limit the time.

        cache: makes the features of frozen vision, if it is frozen. data_sets: see the attribute.
        processes: those that evaluate together, each its part of the episodes; None for one alone.
        """
        processes = Processes() if processes is None else processes
        chosen = slice(None, None, -(-len(episodes) // most_episodes))
        episodes, data_sets = episodes[chosen], data_sets[chosen]
        longest = max((episode.num_samples for episode in episodes), default=1)
        if cache is None:
            windows = WindowDataset(
                episodes, longest, pad="none", resize_to=resize_to, copies=processes.on_machine
            )
            return cls(windows, statistics, data_sets=data_sets, processes=processes)
        windows = WindowDataset(without_cameras(episodes), longest, pad="none")
        features = cache.features(episodes)
        return cls(windows, statistics, features, data_sets=data_sets, processes=processes)

    def mean_action(self) -> ActionErrors:
        """Return the errors of always predicting the mean action of the training episodes."""
        mean = self.statistics.mean
        return self._errors(
            (batch, np.broadcast_to(mean, batch["actions"].shape)) for batch in self._batches()
        )

    def previous_action(self) -> ActionErrors:
        """Return the errors of repeating the demonstrator's previous action.

        At the first tick the mean action stands in for it.
        """
        mean = torch.from_numpy(self.statistics.mean)

        def repeated(batch: WindowBatch) -> Floats:
            known = batch["previous_action_valid"].unsqueeze(2)
            return torch.where(known, batch["previous_action"], mean).numpy()

        return self._errors((batch, repeated(batch)) for batch in self._batches())

    def policy(self, policy: Policy, *, without_previous_action: bool = False) -> ActionErrors:
        """Return the errors of a policy, which must be in evaluation mode."""
        form = policy.relative

        def predicted(batch: WindowBatch) -> Floats:
            actions = _predict(policy, self._inputs(batch), without_previous_action)
            # One rotation is written in several ways, such as by two quaternions; that is no error.
            return form.nearest(actions, batch["actions"]).numpy() if form else actions.numpy()

        return self._errors((batch, predicted(batch)) for batch in self._batches())

    def _inputs(self, batch: WindowBatch) -> PolicyInputs:
        inputs = policy_inputs(batch)
        return (
            self.features.into(inputs, batch["dataset_tick"])
            if self.features is not None
            else inputs
        )

    def _batches(self) -> Iterator[WindowBatch]:
        indices_of_all = torch.arange(len(self.windows))[: self.most_episodes]
        for indices in self.processes.mine(indices_of_all.split(EPISODES_AT_ONCE)):
            yield self.windows.gather(indices)

    def _errors(self, predictions: Iterator[tuple[WindowBatch, Floats]]) -> ActionErrors:
        total = ErrorSum(self.windows.spec, self.statistics.std)
        parts = {name: ErrorSum(total.spec, total.scale) for name in self.data_sets}
        for batch, predicted in predictions:
            valid = batch["valid"].numpy()
            total.add(predicted[valid], batch["actions"].numpy()[valid])
            names = [self.data_sets[episode] for episode in batch["episode"].tolist() if parts]
            for name in dict.fromkeys(names):
                mine = valid & np.array([other == name for other in names])[:, None]
                parts[name].add(predicted[mine], batch["actions"].numpy()[mine])
        add_up = self.processes.sum
        parts = {name: part.over(add_up) for name, part in parts.items()}
        of_each = {name: part.result() for name, part in parts.items() if part.ticks}
        return replace(total.over(add_up).result(), data_sets=of_each)


@torch.no_grad()
def _predict(policy: Policy, inputs: PolicyInputs, without_previous_action: bool) -> Tensor:
    """Return actions (B, T, A) in the spec's units, as `Policy.decode` does.

    The memory goes through all T ticks.
    """
    if without_previous_action:
        inputs = replace(
            inputs, previous_action_valid=torch.zeros_like(inputs.previous_action_valid)
        )
    device, state, decoded = next(policy.parameters()).device, None, []
    for ticks in torch.arange(inputs.previous_action.shape[1]).split(TICKS_AT_ONCE):
        some = inputs.at_ticks(slice(int(ticks[0]), int(ticks[-1]) + 1)).to(device)
        raw, state = policy(some, state)
        decoded.append(policy.decode(raw, some.proprioception).float().cpu())
    return torch.cat(decoded, dim=1)
