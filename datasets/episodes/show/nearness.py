"""Which parts of the action stay close to what is measured, as the positions that a robot is to go to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import Floats
from ttm.policy.errors import UserError
from ttm.policy.network.relative.reference import Reference
from ttm.policy.spec import ActionPart

CLOSE = 0.5
"""A part is close to a vector if the differences spread so much less than the part itself."""


def nearness_lines(episodes: EpisodeDataset) -> list[str]:
    """Return one line for each part of the action that `ttm train --relative` suits."""
    spec = episodes.spec
    actions = np.concatenate([episode.actions for episode in episodes])
    vectors = {
        vector.name: np.concatenate([episode.proprioception(vector.name) for episode in episodes])
        for vector in spec.proprioception
    }
    lines = []
    for part in spec.actions:
        commands = actions[:, spec.action_slices[part.name]]
        ratios = {
            reference: _ratio(commands, vectors[reference.vector], reference)
            for reference in _candidates(part, episodes)
        }
        closest = min(ratios, key=lambda reference: ratios[reference], default=None)
        if closest is not None and ratios[closest] < CLOSE:
            lines.append(
                f"{part.name} stays close to {str(closest).partition('=')[2]}: the difference spreads "
                f"{ratios[closest]:.2g} times as much as the action; to train on the difference: "
                f"ttm train --relative {closest}"
            )
    return lines


def _candidates(part: ActionPart, episodes: EpisodeDataset) -> Iterator[Reference]:
    """Yield all references that a part may have."""
    for vector in episodes.spec.proprioception:
        for first in range(vector.size - part.size + 1):
            some = None if vector.size == part.size else (first, first + part.size)
            reference = Reference(part.name, vector.name, some)
            try:
                reference.of(episodes.spec)
            except UserError:
                continue
            yield reference


def _ratio(commands: Floats, measured: Floats, reference: Reference) -> float:
    """Return the spread of the differences as a multiple of that of the commands, of the worst dimension."""
    first, stop = reference.values or (0, measured.shape[1])
    spread = commands.std(axis=0)
    differences = (commands - measured[:, first:stop]).std(axis=0)
    return float((differences / np.maximum(spread, 1e-12)).max())
