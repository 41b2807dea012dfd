"""Opening the episodes that a command names, and choosing cameras and masks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


def open_all(paths: Sequence[str], cameras: Sequence[str] = ()) -> list[EpisodeDataset]:
    """Open every data set in `paths`, reduced to the cameras called `cameras` if any are named.

    Raises `UserError` if a path cannot be opened, a camera is missing, or the data sets differ in
    their spec.
    """
    if not paths:
        raise UserError("no data is given; name HDF5 files, folders of them, or globs with --data")
    opened = [_with_cameras(open_dataset(path), cameras) for path in paths]
    for other in opened[1:]:
        opened[0].spec.require_compatible(other.spec, ours=opened[0].source, theirs=other.source)
    return opened


def split(opened: Sequence[EpisodeDataset], mask: str) -> EpisodeDataset:
    """Join the episodes of all data sets that belong to `mask` (see `EpisodeDataset.filter`)."""
    parts = [dataset.filter(mask) for dataset in opened]
    episodes = [episode for part in parts for episode in part]
    notes = dict.fromkeys(part.note for part in parts if part.note)
    source = ", ".join(part.source for part in parts)
    return EpisodeDataset(episodes, opened[0].spec, source=source, note="; ".join(notes))


def _with_cameras(dataset: EpisodeDataset, names: Sequence[str]) -> EpisodeDataset:
    if not names:
        return dataset
    have = {camera.name: camera for camera in dataset.spec.cameras}
    for name in names:
        if name not in have:
            raise UserError(
                f"camera '{name}' is not in this data; it has: {', '.join(have) or 'none'} "
                f"({dataset.source})"
            )
    spec: PolicySpec = replace(dataset.spec, cameras=tuple(have[name] for name in names))
    return EpisodeDataset(list(dataset), spec, source=dataset.source, note=dataset.note)
