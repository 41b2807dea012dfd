"""Opening the episodes that a command names, and choosing cameras and masks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttm.datasets.duplicates import held_apart
from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.observations.choices import NONE, Choices
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


def open_all(
    paths: Sequence[str],
    cameras: Sequence[str] = (),
    *,
    choices: Choices | None = None,
    like: PolicySpec | None = None,
) -> list[EpisodeDataset]:
    """Open every data set in `paths`, reduced to the cameras called `cameras` if any are named.

    choices: all choices of the user, in place of `cameras`. like: the spec of a checkpoint, whose
    cameras are taken if none are chosen; see `open_dataset` for the rest.
    Raises `UserError` if a path cannot be opened, a camera is missing, or the data sets differ in
    their spec.
    """
    if not paths:
        raise UserError("no data is given; name HDF5 files, folders of them, or globs with --data")
    choices = choices or Choices(cameras=tuple(cameras))
    if like is not None and not choices.cameras:
        known = tuple(camera.name for camera in like.cameras) or (NONE,)
        choices = replace(choices, cameras=known)
    opened = [open_dataset(path, choices=choices, like=like) for path in paths]
    for other in opened[1:]:
        opened[0].spec.require_compatible(other.spec, ours=opened[0].source, theirs=other.source)
    return opened


def split(opened: Sequence[EpisodeDataset], mask: str) -> EpisodeDataset:
    """Join the episodes of all data sets that belong to `mask` (see `EpisodeDataset.filter`)."""
    parts = [dataset.filter(mask) for dataset in opened]
    episodes = [episode for part in parts for episode in part]
    notes = dict.fromkeys(part.note for part in parts if part.note)
    source = ", ".join(part.source for part in parts)
    return EpisodeDataset(
        episodes,
        opened[0].spec,
        source=source,
        note="; ".join(notes),
        members=opened[0].members,
    )


def split_apart(
    opened: Sequence[EpisodeDataset], training: str, validation: str
) -> tuple[EpisodeDataset, EpisodeDataset]:
    """Return the episodes of two masks; none of the second, and no copy of one, is in the first."""
    held_out = split(opened, validation)
    return held_apart(split(opened, training), held_out), held_out
