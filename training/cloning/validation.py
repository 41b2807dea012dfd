"""Errors on held-out episodes, run from their first tick to their last with the memory carried, as in use.

Beside the policy's error stand those of two policies that look at nothing: the mean action of the training
episodes, and the previous action once more. The previous action that the network gets is the demonstrator's,
so a low error alone does not show a good policy; `without_previous_action` denies it that input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from ttm.datasets.episode import EpisodeDataset
from ttm.datasets.statistics import VectorStatistics
from ttm.datasets.windows.windows import WindowBatch, WindowDataset
from ttm.policy.network.policy import Policy, PolicyInputs
from ttm.training.cloning.action_errors import ActionErrors, ErrorSum, Floats
from ttm.training.cloning.behavior_cloning import at_ticks
from ttm.training.cloning.training_data import policy_inputs

EPISODES_AT_ONCE = 8
TICKS_AT_ONCE = 32
"""Bounds on what a forward pass holds in memory; results do not depend on them."""


@dataclass
class EpisodeErrors:
    """Evaluates predictors on every tick of some episodes."""

    windows: WindowDataset
    """One window for each whole episode."""
    statistics: VectorStatistics
    """Of the training episodes' actions."""

    @classmethod
    def of(
        cls,
        episodes: EpisodeDataset,
        statistics: VectorStatistics,
        resize_to: dict[str, tuple[int, int]],
        most_episodes: int = 50,
    ) -> EpisodeErrors:
        """Of at most `most_episodes`, evenly spread; more would take time from training and change little."""
        episodes = episodes[:: -(-len(episodes) // most_episodes)]
        longest = max((episode.num_samples for episode in episodes), default=1)
        return cls(WindowDataset(episodes, longest, pad="none", resize_to=resize_to), statistics)

    def mean_action(self) -> ActionErrors:
        """Of always giving the training episodes' mean action."""
        mean = self.statistics.mean
        return self._errors(
            (batch, np.broadcast_to(mean, batch["actions"].shape)) for batch in self._batches()
        )

    def previous_action(self) -> ActionErrors:
        """Of repeating the demonstrator's previous action; at the first tick, of the mean action."""
        mean = torch.from_numpy(self.statistics.mean)

        def repeated(batch: WindowBatch) -> Floats:
            known = batch["previous_action_valid"].unsqueeze(2)
            return torch.where(known, batch["previous_action"], mean).numpy()

        return self._errors((batch, repeated(batch)) for batch in self._batches())

    def policy(self, policy: Policy, *, without_previous_action: bool = False) -> ActionErrors:
        """Of a policy, which must be in evaluation mode."""
        return self._errors(
            (batch, _predict(policy, policy_inputs(batch), without_previous_action))
            for batch in self._batches()
        )

    def _batches(self) -> Iterator[WindowBatch]:
        for indices in torch.arange(len(self.windows)).split(EPISODES_AT_ONCE):
            yield self.windows.gather(indices)

    def _errors(self, predictions: Iterator[tuple[WindowBatch, Floats]]) -> ActionErrors:
        total = ErrorSum(self.windows.spec, self.statistics.std)
        for batch, predicted in predictions:
            valid = batch["valid"].numpy()
            total.add(predicted[valid], batch["actions"].numpy()[valid])
        return total.result()


@torch.no_grad()
def _predict(policy: Policy, inputs: PolicyInputs, without_previous_action: bool) -> Floats:
    """(B, T, A) in units, probabilities in binary dimensions; the memory goes through all T ticks."""
    if without_previous_action:
        inputs = replace(
            inputs, previous_action_valid=torch.zeros_like(inputs.previous_action_valid)
        )
    device, state, decoded = next(policy.parameters()).device, None, []
    for ticks in torch.arange(inputs.previous_action.shape[1]).split(TICKS_AT_ONCE):
        some = at_ticks(inputs, slice(int(ticks[0]), int(ticks[-1]) + 1)).to(device)
        prediction, state = policy(some, state)
        decoded.append(policy.decode(prediction.raw).float().cpu())
    return torch.cat(decoded, dim=1).numpy()
