"""Many episodes as one data set: a file, a folder of files, or a glob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.index.opening import Opening
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.layouts.find_files import find_files
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.members import Member
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SPLIT_EVERY = 10
"""Without masks, every tenth episode is held out for validation."""


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

        "train" and "valid" can be asked for even if the data set does not have both masks: every
        tenth episode (or the last one of fewer than ten) is then "valid" and the others "train",
        and the result's `note` says so. This split depends only on the order of the episodes, so
        that it is the same every time.

        Raises `UserError` if there is no other mask of that key.
        """
        if key in ("train", "valid") and not {"train", "valid"} <= set(self.mask_keys):
            return self._every_tenth(key)
        if key not in self.mask_keys:
            known = ", ".join(self.mask_keys) or "none"
            raise UserError(f"{self.source} has no mask '{key}'; it has: {known}")
        return self._subset(
            [episode for episode in self._episodes if key in episode.masks], self.note
        )

    def _every_tenth(self, key: str) -> EpisodeDataset:
        count = len(self._episodes)
        held_out = set(range(SPLIT_EVERY - 1, count, SPLIT_EVERY)) or (
            {count - 1} if count > 1 else set()
        )
        chosen = [
            episode
            for i, episode in enumerate(self._episodes)
            if (i in held_out) == (key == "valid")
        ]
        note = (
            f"no mask/train and mask/valid: {len(held_out)} of {count} episodes (every tenth) "
            "are held out"
        )
        return self._subset(chosen, f"{self.note}; {note}" if self.note else note)

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
        note="; ".join(filter(None, [described.note, *_instruction_notes(episodes)])),
        members=described.members,
    )


def _instruction_notes(episodes: Sequence[EpisodeReader]) -> Iterator[str]:
    if without := sum(not episode.instruction for episode in episodes):
        yield f"{without} episodes have no instruction: '{DEFAULT_INSTRUCTION}' is taken"
    if odd := sum("\ufffd" in episode.instruction for episode in episodes):
        yield f"{odd} episodes have instructions that are not UTF-8 text"


def spec_difference(ours: PolicySpec, theirs: PolicySpec) -> str | None:
    """Return the first difference between two specs in words, or None if there is none."""
    try:
        ours.require_compatible(theirs, theirs="this one", ours="the first file")
    except UserError as error:
        return str(error)
    return None
