"""Statistics of actions in the form in which a policy predicts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ttm.datasets.episode_reader import EpisodeReader, Floats
from ttm.policy.network.policy import Policy


@dataclass(frozen=True)
class PredictedStatistics:
    """Mean and standard deviation of each dimension, (P,) each, in the units of the spec."""

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
