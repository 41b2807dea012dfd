"""Actions, proprioception, weights and timestamps of episodes, kept in the index.

A training reads them all when it starts, which takes an opening of each file. Frames are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ttm.datasets.episode_file import demo_names, open_file
from ttm.datasets.episode_reader import Array, EpisodeReader
from ttm.datasets.index.database import EpisodeIndex, stamp_of
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

DEMOS_AT_ONCE = 256
"""So many demos of a file are read while it is open, since those that follow are wanted next."""

OPTIONAL = {
    "executed_actions": np.float32,
    "interventions": np.bool_,
    "loss_weights": np.float32,
    "timestamps": np.float64,
}
"""Vectors that an episode may lack, with the types in which they are read."""


class IndexedVectors:
    """Gives the vectors of episodes from the index, to which those that it lacks are added."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index

    def vectors(self, episode: EpisodeReader) -> Mapping[str, Array] | None:
        """Return the vectors of an episode by their names in the file, each (T, …).

        Optional ones are left out if it has none. None if the file is gone or damaged.
        """
        try:
            stamp = stamp_of(episode.path)
            kept = self._index.vectors(episode.path, episode.name, stamp)
            arrays = None if kept is None else load(kept)
        except (OSError, SafetensorError):
            return None
        wanted = set(_required(episode.spec))
        if arrays is None or not wanted <= arrays.keys():
            arrays = self._read(episode, stamp).get(episode.name)
        return arrays

    def _read(self, episode: EpisodeReader, stamp: str) -> dict[str, dict[str, Array]]:
        """Read the vectors of an episode and of those that follow it in the file, and keep them."""
        try:
            with open_file(episode.path) as file:
                found = dict(_whole(file, episode))
        except UserError:
            return {}
        kept = {name: save(arrays) for name, arrays in found.items()}
        self._index.store_vectors(episode.path, stamp, kept)
        return found


def _whole(file: Any, episode: EpisodeReader) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield the name and vectors of each of the next episodes that is whole."""
    names = demo_names(file)
    first = names.index(episode.name)
    for name in names[first : first + DEMOS_AT_ONCE]:
        arrays = _arrays(file["data"][name], episode.spec)
        if arrays is not None:
            yield name, arrays


def _arrays(demo: Any, spec: PolicySpec) -> dict[str, Array] | None:
    """Return the vectors of a demo; None if one is missing, or of another length than the actions."""
    types: dict[str, Any] = dict.fromkeys(_required(spec), np.float32)
    types |= {key: kind for key, kind in OPTIONAL.items() if key in demo}
    if any(key not in demo or not getattr(demo[key], "shape", None) for key in types):
        return None
    arrays = {key: np.ascontiguousarray(demo[key], dtype=kind) for key, kind in types.items()}
    return arrays if len({len(array) for array in arrays.values()}) == 1 else None


def _required(spec: PolicySpec) -> list[str]:
    return ["actions", *(f"obs/{vector.name}" for vector in spec.proprioception)]
