"""Merging, splitting and filtering of data sets in HDF5."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from ttm.datasets.arrange.demo_file import write_demos
from ttm.datasets.arrange.wanted import Wanted
from ttm.datasets.convert.output import require_apart, write_whole
from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.episode_file import open_file, read_stored_spec
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.layout import SUFFIXES
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SplitBy = Literal["valid", "task", "instruction", "episode"]


def merge_episodes(sources: Sequence[str | Path], out: Path, *, overwrite: bool = False) -> int:
    """Write the episodes of all sources to the one file `out`; return their number.

    Raises `UserError` if the data sets differ in what is observed or commanded.
    """
    _require_file(out)
    for source in sources:
        require_apart(source, out)
    opened = [open_dataset(source) for source in sources]
    for other in opened[1:]:
        _require_same(opened[0], other)
    episodes = [episode for dataset in opened for episode in dataset]
    _write_file(out, episodes, overwrite)
    return len(episodes)


def filter_episodes(
    source: str | Path, out: Path, wanted: Wanted, *, overwrite: bool = False
) -> tuple[int, int]:
    """Write the wanted episodes to the one file `out`; return the numbers of kept and of all ones.

    Raises `UserError` if none is wanted.
    """
    wanted.validate()
    _require_file(out)
    require_apart(source, out)
    episodes = open_dataset(source)
    kept = [episode for episode in episodes if wanted.keeps(episode)]
    if not kept:
        raise UserError(
            f"none of the {len(episodes)} episodes of {source} is as asked for; "
            f"`ttm data show {source}` lists their tasks, instructions and success"
        )
    _write_file(out, kept, overwrite)
    return len(kept), len(episodes)


def split_episodes(
    source: str | Path,
    out: Path,
    *,
    by: SplitBy = "valid",
    valid: float = 0.1,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write the episodes to several files in the folder `out`; return file name -> episodes.

    by="valid" holds out the portion `valid`, chosen at random by `seed`, in valid.hdf5, and the
    others are in train.hdf5, each with the mask of its name. Copies of an episode go together.
    by="task", "instruction" or "episode" writes one file for each of these and keeps the masks.
    """
    if not 0 < valid < 1:
        raise UserError(f"--valid is {valid}; give a portion between 0 and 1, such as 0.1")
    require_apart(source, out)
    episodes = open_dataset(source)
    parts = _held_out(episodes, valid, seed) if by == "valid" else _groups(episodes, by)

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, members in parts.items():
            masks = {each: (each.masks - {"train", "valid"}) | {name} for each in members}
            write_demos(folder / f"{name}.hdf5", members, masks if by == "valid" else None)

    write_whole(out, write, contents=[f"*{suffix}" for suffix in SUFFIXES], overwrite=overwrite)
    return {f"{name}.hdf5": len(members) for name, members in parts.items()}


def _held_out(
    episodes: Sequence[EpisodeReader], portion: float, seed: int
) -> dict[str, list[EpisodeReader]]:
    copies: dict[bytes, list[EpisodeReader]] = defaultdict(list)
    for episode in episodes:
        copies[_content(episode)].append(episode)
    groups = list(copies.values())
    if len(groups) < 2:
        raise UserError("the episodes are all copies of one; nothing can be held out of them")
    order = np.random.default_rng(seed).permutation(len(groups)).tolist()
    count = min(max(round(portion * len(groups)), 1), len(groups) - 1)
    held_out = {id(episode) for i in order[:count] for episode in groups[i]}
    return {
        "train": [episode for episode in episodes if id(episode) not in held_out],
        "valid": [episode for episode in episodes if id(episode) in held_out],
    }


def _content(episode: EpisodeReader) -> bytes:
    """Return a digest of an episode's actions and proprioception, which copies share."""
    digest = hashlib.sha256(episode.actions.tobytes())
    for vector in episode.spec.proprioception:
        digest.update(episode.proprioception(vector.name).tobytes())
    return digest.digest()


def _groups(episodes: Iterable[EpisodeReader], by: SplitBy) -> dict[str, list[EpisodeReader]]:
    names: dict[str, Callable[[int, EpisodeReader], str]] = {
        "task": lambda _, episode: episode.task,
        "instruction": lambda _, episode: episode.instruction,
        "episode": lambda number, _: f"episode_{number:05d}",
    }
    values: dict[str, str] = {}
    found: dict[str, list[EpisodeReader]] = defaultdict(list)
    for number, episode in enumerate(episodes):
        value = names[by](number, episode)
        if value not in values:
            values[value] = _file_name(value, found)
        found[values[value]].append(episode)
    return dict(found)


def _file_name(text: str, taken: Collection[str]) -> str:
    """Return `text` as a name of a file that is not taken yet."""
    plain = re.sub(r"[^\w-]+", "_", text).strip("_")[:80] or "none"
    numbered = (f"{plain}_{number}" for number in range(2, len(taken) + 3))
    return plain if plain not in taken else next(name for name in numbered if name not in taken)


def _write_file(out: Path, episodes: Sequence[EpisodeReader], overwrite: bool) -> None:
    write_whole(out, lambda path: write_demos(path, episodes), contents=(), overwrite=overwrite)


def _require_file(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise UserError(f"{out}: one file is written; give a name that ends in .hdf5")


def _require_same(ours: EpisodeDataset, theirs: EpisodeDataset) -> None:
    mine, other = (_stored_spec(dataset) for dataset in (ours, theirs))
    if (mine is None) != (other is None):
        bare = ours if mine is None else theirs
        raise UserError(
            f"{bare.source} carries no spec, but the other data do; write it with one first: "
            f"ttm data convert {bare.source} TO"
        )
    other_spec = theirs.spec
    if mine is None and other_spec.action_size == ours.spec.action_size:
        # What is binary is inferred from the values, and may differ between parts of one data set.
        other_spec = replace(other_spec, actions=ours.spec.actions)
    ours.spec.require_compatible(other_spec, ours=ours.source, theirs=theirs.source)


def _stored_spec(dataset: EpisodeDataset) -> PolicySpec | None:
    with open_file(dataset[0].path) as file:
        return read_stored_spec(file)
