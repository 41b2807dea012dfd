"""Many episodes as one data set: a file, a folder of files, or a glob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from ttm.datasets.episode_file import HELD_OUT
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.index.opening import Opening
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.layouts.find_files import find_files
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.members import Member
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SPLIT_EVERY = 10
"""Without `mask/valid`, every tenth episode is held out for validation."""


class EpisodeDataset(Sequence[EpisodeReader]):
    """A sequence of episodes of one spec, as `open_dataset` gives it.

    `source` is where they come from. `note` says in words what was assumed about them, such as an
    inferred spec, and is empty if nothing was. `members` are all members of `obs`, used or not.
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
            return self._subset(self._episodes[index], self.note)
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

        "train" and "valid" can be asked for even if no mask of that key names an episode. Episodes
        are then "train" unless a mask of `HELD_OUT` names them, and every tenth of them (or the
        last one of fewer than ten) is "valid" instead, and the result's `note` says so. This split
        depends only on the order of the episodes, so that it is the same every time.

        Raises `UserError` if there is no other mask of that key.
        """
        keys = self.mask_keys
        if key in keys and (key != "train" or "valid" in keys):
            return self._subset([each for each in self._episodes if key in each.masks], self.note)
        if key in ("train", "valid"):
            return self._split(key)
        known = ", ".join(keys) or "none"
        raise UserError(f"{self.source} has no mask '{key}'; it has: {known}")

    def _split(self, key: str) -> EpisodeDataset:
        """Return the episodes of "train" or "valid" where at least one of these masks names none."""
        keys = self.mask_keys
        train = [
            episode
            for episode in self._episodes
            if ("train" in episode.masks if "train" in keys else episode.masks.isdisjoint(HELD_OUT))
        ]
        count, others = len(train), len(self._episodes) - len(train)
        if "valid" in keys:
            note = f"no mask/train: all {count} episodes that no mask holds out are trained on"
            return self._subset(train, _joined(self.note, note))
        held_out = set(range(SPLIT_EVERY - 1, count, SPLIT_EVERY)) or (
            {count - 1} if count > 1 else set()
        )
        chosen = [episode for i, episode in enumerate(train) if (i in held_out) == (key == "valid")]
        missing = "mask/valid" if "train" in keys else "mask/train and mask/valid"
        note = f"no {missing}: {len(held_out)} of {count} episodes (every tenth) are held out"
        if others:
            note += f", and {others} that the masks leave out are not used"
        return self._subset(chosen, _joined(self.note, note))

    def _subset(self, episodes: Sequence[EpisodeReader], note: str) -> EpisodeDataset:
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

    Only shapes and attributes are read. The spec is the one that the files carry, which must be
    the same in all of them. If none carries one, it is `spec`, or else what `infer_spec` infers
    from all files together. `choices` select from it and change it. `like` is the spec of a
    checkpoint that is to be trained or run on the episodes; see `describe_bare`.

    Data sets of `INDEX_FROM` episodes or more are kept in the index of the user (`index/`), from
    which they open quickly while their files stay the same.

    Raises `UserError` if there is no episode, if a file is damaged, if specs differ, or if the data
    are in a layout that is not read as it is.
    """
    choices = choices or Choices()
    files = find_files(path, allow_external=choices.allow_external)
    opening = Opening(files, choices, spec, like)
    episodes = opening.episodes()
    if not episodes:
        raise UserError(
            f"{path} has no episode (data/demo_0, …); record one with `ttm collect`, "
            "or check the path"
        )
    described = opening.described
    return EpisodeDataset(
        episodes,
        described.spec,
        source=str(path),
        note=_joined(described.note, *_instruction_notes(episodes)),
        members=described.members,
    )


def _instruction_notes(episodes: Sequence[EpisodeReader]) -> Iterator[str]:
    if without := sum(not episode.instruction for episode in episodes):
        yield f"{without} episodes have no instruction: '{DEFAULT_INSTRUCTION}' is taken"
    if odd := sum("\ufffd" in episode.instruction for episode in episodes):
        yield f"{odd} episodes have instructions that are not UTF-8 text"


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def spec_difference(ours: PolicySpec, theirs: PolicySpec) -> str | None:
    """Return the first difference between two specs in words, or None if there is none."""
    try:
        ours.require_compatible(theirs, theirs="this one", ours="the first file")
    except UserError as error:
        return str(error)
    return None
