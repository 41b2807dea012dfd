"""Many episodes as one data set: a file, a folder of files, or a glob."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, overload

import numpy as np

from ttm.datasets.description import Choices
from ttm.datasets.episode_file import HELD_OUT, damaged
from ttm.datasets.files import find_files
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.opening import open_files
from ttm.datasets.reader import EpisodeReader, Floats
from ttm.datasets.spec_inference import Member
from ttm.policy.errors import UserError
from ttm.policy.language import EMBEDDING_SIZE, LANGUAGE_MODEL, embed_instruction
from ttm.policy.spec import SHIPPED, PolicySpec, checkpoint_path, read_checkpoint_spec

SPLIT_EVERY = 10  # without `mask/valid`, every tenth episode is held out for validation

FRAMES = 4  # frames of each camera that are compared, evenly spread, where all actions are equal
LEAST_DEVIATION = 1e-8
"""A dimension of the action whose standard deviation is not above this never moved."""
MOST_EMBEDDED = 1e3
"""Values of an embedding beyond this are refused; the language model's are up to 1."""


class EpisodeDataset(Sequence[EpisodeReader]):
    """A sequence of episodes of one spec, as `open_dataset` gives it.

    `source` is where they come from, and `note` what was assumed about them, in words. `members` are all
    members of `obs`, used or not.
    """

    def __init__(
        self,
        episodes: Sequence[EpisodeReader],
        spec: PolicySpec,
        *,
        source: str,
        note: str = "",
        members: Sequence[Member] = (),
    ) -> None:
        self.spec = spec
        self.source = source
        self.note = note
        self.members = tuple(members)
        self._episodes = list(episodes)

    def __len__(self) -> int:
        return len(self._episodes)

    def __iter__(self) -> Iterator[EpisodeReader]:
        return iter(self._episodes)

    @overload
    def __getitem__(self, index: int) -> EpisodeReader: ...

    @overload
    def __getitem__(self, index: slice) -> EpisodeDataset: ...

    def __getitem__(self, index: int | slice) -> EpisodeReader | EpisodeDataset:
        if isinstance(index, slice):
            return self.subset(self._episodes[index])
        return self._episodes[index]

    @property
    def num_ticks(self) -> int:
        """The number of ticks of all episodes together."""
        return sum(episode.num_samples for episode in self._episodes)

    @property
    def mask_keys(self) -> list[str]:
        """The filter keys of the masks that name any of the episodes, sorted."""
        return sorted(set().union(*(episode.masks for episode in self._episodes)))

    def filter(self, key: str) -> EpisodeDataset:
        """Return the episodes that `mask/<key>` names.

        Without masks of these keys, episodes are "train" unless a mask of `HELD_OUT` names them, and every
        tenth of them (or the last one of fewer than ten) is "valid" instead. The result's `note` says so.

        Raises `UserError` if there is no other mask of that key.
        """
        keys = self.mask_keys
        if key in keys and (key != "train" or "valid" in keys):
            return self.subset([each for each in self._episodes if key in each.masks])
        if key not in ("train", "valid"):
            known = ", ".join(keys) or "none"
            raise UserError(f"{self.source} has no mask '{key}'; it has: {known}")
        train = [each for each in self._episodes if each.masks.isdisjoint(HELD_OUT)]
        if "train" in keys:
            train = [each for each in self._episodes if "train" in each.masks]
        count, others = len(train), len(self._episodes) - len(train)
        if "valid" in keys:
            note = f"no mask/train: all {count} episodes that no mask holds out are trained on"
            return self.subset(train, note)
        held_out = set(range(SPLIT_EVERY - 1, count, SPLIT_EVERY))
        if not held_out and count > 1:
            held_out = {count - 1}
        chosen = [episode for i, episode in enumerate(train) if (i in held_out) == (key == "valid")]
        missing = "mask/valid" if "train" in keys else "mask/train and mask/valid"
        note = f"no {missing}: {len(held_out)} of {count} episodes (every tenth) are held out"
        if others:
            note += f", and {others} that the masks leave out are not used"
        return self.subset(chosen, note)

    def subset(self, episodes: Sequence[EpisodeReader], *notes: str) -> EpisodeDataset:
        """Return some of the episodes as a data set, with `notes` added to its own."""
        note = _joined(self.note, *notes)
        return EpisodeDataset(
            episodes, self.spec, source=self.source, note=note, members=self.members
        )


def open_dataset(
    path: str | Path,
    *,
    spec: PolicySpec | None = None,
    choices: Choices | None = None,
    like: PolicySpec | None = None,
) -> EpisodeDataset:
    """Open a data set: an HDF5 file, a folder (with all folders in it), or a glob.

    The spec is the one that the files carry, which must be the same in all of them. If none carries one, it
    is `spec`, or else what `infer_spec` infers from all files together. `choices` select from it and change
    it. `like` is the spec of a checkpoint that is to be trained or run on the episodes; see
    `describe_bare`. What the files of large data sets say is kept in the user's cache; see `opening.py`.

    Raises `UserError` if there is no episode, if a file is damaged, if specs differ, or if the data
    are in a layout that is not read as it is.
    """
    choices = choices or Choices()
    files = find_files(path, allow_external=choices.allow_external)
    described, episodes = open_files(path, files, choices, spec, like)
    if not episodes:
        raise UserError(f"{path} has no episode (data/demo_0, …); record one, or check the path")
    notes = [described.note]
    if without := sum(not episode.instruction for episode in episodes):
        notes.append(f"{without} episodes have no instruction: '{DEFAULT_INSTRUCTION}' is taken")
    if odd := sum("\ufffd" in episode.instruction for episode in episodes):
        notes.append(f"{odd} episodes have instructions that are not UTF-8 text")
    note, members = _joined(*notes), described.members
    return EpisodeDataset(episodes, described.spec, source=str(path), note=note, members=members)


def read_spec(source: str) -> PolicySpec:
    """Return the spec of a checkpoint, or of episodes. Raises `UserError` if there are none."""
    if source == SHIPPED or source.endswith(".safetensors"):
        return read_checkpoint_spec(checkpoint_path(source))
    return open_dataset(source).spec


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def same_episodes(episodes: Sequence[EpisodeReader]) -> list[list[int]]:
    """Return the groups of two or more episodes that hold the same, as indices in rising order.

    Names and places of files do not count: they may be copies, hard links, or one file named twice.
    Frames and proprioception are read only where all actions are equal.
    """

    def groups(indices: Iterable[int], key: Callable[[EpisodeReader], bytes]) -> list[list[int]]:
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for index in indices:
            by_key[key(episodes[index])].append(index)
        return [group for group in by_key.values() if len(group) > 1]

    alike = groups(range(len(episodes)), lambda episode: _digest([episode.actions]))
    parts = (groups(group, lambda episode: _digest(_observations(episode))) for group in alike)
    return sorted(itertools.chain.from_iterable(parts))


def _observations(episode: EpisodeReader) -> Iterable[Any]:
    for vector in episode.spec.proprioception:
        yield episode.proprioception(vector.name)
    ticks = np.unique(np.linspace(0, episode.num_samples - 1, FRAMES).astype(int)).tolist()
    for camera in episode.spec.cameras:
        for tick in ticks:
            yield episode.frames(camera.name, tick, tick + 1)


def _digest(arrays: Iterable[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(repr(array.shape).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def held_apart(training: EpisodeDataset, validation: EpisodeDataset) -> EpisodeDataset:
    """Return the training episodes without those that are, or equal, one for validation.

    The note says how many were left out, and how many occur more than once. Raises `UserError` if
    none is left.
    """
    groups = same_episodes([*training, *validation])
    count = len(training)
    shared = {index for group in groups if group[-1] >= count for index in group if index < count}
    kept = [episode for index, episode in enumerate(training) if index not in shared]
    if count and not kept:
        raise UserError(
            f"{training.source}: all episodes are held out for validation; give other masks, or more"
        )
    notes = []
    if shared:
        notes.append(
            f"{len(shared)} episodes are not trained on, because they or copies of them are held out"
        )
    if repeated := sum(len(group) - 1 for group in groups if group[-1] < count):
        notes.append(f"{repeated} episodes are copies of others, and count twice in the training")
    return training.subset(kept, *notes)


@dataclass(frozen=True)
class VectorStatistics:
    """Statistics of a vector of K values over all ticks, each (K,) float32, in its own units."""

    mean: Floats
    std: Floats
    min: Floats
    max: Floats


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of the actions, and of each proprioception vector by its name."""

    actions: VectorStatistics
    proprioception: dict[str, VectorStatistics]


def dataset_statistics(episodes: Iterable[EpisodeReader]) -> DatasetStatistics:
    """Return the statistics over every tick of `episodes`, which must have the same spec.

    Raises `UserError` if there is no episode.
    """
    episodes = list(episodes)
    if not episodes:
        raise UserError("there is no episode to take statistics of; give at least one")

    def of(vector: Callable[[EpisodeReader], Floats]) -> VectorStatistics:
        return vector_statistics(np.concatenate(list(map(vector, episodes))))

    names = [vector.name for vector in episodes[0].spec.proprioception]
    measured = {name: of(methodcaller("proprioception", name)) for name in names}
    return DatasetStatistics(of(attrgetter("actions")), measured)


def vector_statistics(values: Floats) -> VectorStatistics:
    """Return the statistics of values (n, K).

    Sums are taken in float64, because float32 would lose digits over long recordings.
    """
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite values, which checks name
        found = (wide.mean(axis=0), wide.std(axis=0), wide.min(axis=0), wide.max(axis=0))
    return VectorStatistics(*(item.astype(np.float32) for item in found))


def require_motion(actions: VectorStatistics, where: str) -> None:
    """Raise `UserError` if no dimension of the actions of a training moves. where: their source."""
    if not (actions.std > LEAST_DEVIATION).any():
        raise UserError(f"{where}: the action is the same at every tick to train on; record more")


def embed_instructions(episodes: Sequence[EpisodeReader]) -> Floats:
    """Return the embedding of each episode's instruction, (E, L) float32.

    An embedding that the file stores is taken if the default language model made it. Otherwise the
    language model, which takes seconds to load, embeds each distinct instruction once.
    """
    found: dict[str, Floats] = {}
    for text, episode in ((episode.instruction, episode) for episode in episodes):
        if text not in found:
            stored = stored_embedding(episode)
            found[text] = (
                embed_instruction(text or DEFAULT_INSTRUCTION) if stored is None else stored
            )
    return np.stack([found[episode.instruction] for episode in episodes])


def stored_embedding(episode: EpisodeReader) -> Floats | None:
    """Return the embedding that the file stores, (L,); None if none, or one of another model.

    Raises `UserError` if the default language model cannot have made it.
    """
    stored = episode.language_embedding
    if stored is None or episode.language_model not in (None, LANGUAGE_MODEL):
        return None
    if stored.shape != (EMBEDDING_SIZE,) or not (np.abs(stored) <= MOST_EMBEDDED).all():
        raise damaged(
            episode.path,
            f"data/{episode.name}/language_embedding has shape {stored.shape}, or is not finite or "
            f"large, and {LANGUAGE_MODEL} gives {EMBEDDING_SIZE} values from -1 to 1",
            "name its model by the attribute language_model, or take it out of the file",
        )
    return stored
