"""Many episodes as one data set: a file, a folder of files, or a glob."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from ttm.datasets.episode_file import damaged, open_file, read_stored_spec
from ttm.datasets.episode_reader import EpisodeReader, read_episodes
from ttm.datasets.layout import DEFAULT_INSTRUCTION, SUFFIXES, natural_key
from ttm.datasets.progress import track
from ttm.datasets.spec_inference import infer_spec_of_files
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SPLIT_EVERY = 10
"""Without masks, every tenth episode is held out for validation."""


class EpisodeDataset(Sequence[EpisodeReader]):
    """A sequence of episodes of one spec, as `open_dataset` gives it.

    `source` is where they come from. `note` says in words what was assumed about them, such as an
    inferred spec, and is empty if nothing was.
    """

    def __init__(
        self, episodes: Sequence[EpisodeReader], spec: PolicySpec, *, source: str, note: str = ""
    ) -> None:
        self.spec = spec
        self.source = source
        self.note = note
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
        return EpisodeDataset(episodes, self.spec, source=self.source, note=note)


def open_dataset(path: str | Path, *, spec: PolicySpec | None = None) -> EpisodeDataset:
    """Open a data set: an HDF5 file, a folder (with all folders in it), or a glob.

    Only shapes and attributes are read. The spec is the one that the files carry, which must be
    the same in all of them. If none carries one, it is `spec`, or else what `infer_spec` infers
    from all files together.

    Raises `UserError` if there is no episode, if a file is damaged, or if specs differ.
    """
    files = find_files(path)
    stored = {file: _stored_spec(file) for file in track(files, "opening")}
    spec, note = _common_spec(stored, spec)
    episodes: list[EpisodeReader] = []
    for file in track(files, "reading"):
        with open_file(file) as handle:
            episodes += read_episodes(handle, file, spec)
    if not episodes:
        raise UserError(
            f"{path} has no episode (data/demo_0, …); record one with `ttm collect`, "
            "or check the path"
        )
    without = sum(not episode.instruction for episode in episodes)
    if without:
        default = f"{without} episodes have no instruction: '{DEFAULT_INSTRUCTION}' is taken"
        note = "; ".join(filter(None, [note, default]))
    return EpisodeDataset(episodes, spec, source=str(path), note=note)


def find_files(path: str | Path) -> list[Path]:
    """Return the HDF5 files that a file, folder or glob means, demo_2 before demo_10.

    Hidden files are left out, because episodes in progress are such. Raises `UserError` if there
    is no file.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        found = [item for item in place.rglob("*") if item.suffix in SUFFIXES]
    elif glob.has_magic(str(place)):
        found = [Path(item) for item in glob.glob(str(place), recursive=True)]
    else:
        raise UserError(
            f"{path} does not exist; give an HDF5 file, a folder of them, or a glob in quotes"
        )
    files = sorted(
        (item for item in found if item.is_file() and not item.name.startswith(".")),
        key=natural_key,
    )
    if not files:
        kind = "folder has no *.hdf5 or *.h5 in it" if place.is_dir() else "glob matches no file"
        raise UserError(
            f"{path}: this {kind}; record episodes there with `ttm collect`, or check the name"
        )
    return files


def spec_difference(ours: PolicySpec, theirs: PolicySpec) -> str | None:
    """Return the first difference between two specs in words, or None if there is none."""
    try:
        ours.require_compatible(theirs, theirs="this one", ours="the first file")
    except UserError as error:
        return str(error)
    return None


def _stored_spec(path: Path) -> PolicySpec | None:
    with open_file(path) as file:
        if "data" not in file:
            raise damaged(path, "it has no group 'data', so it is no robomimic file")
        return read_stored_spec(file)


def _common_spec(
    stored: dict[Path, PolicySpec | None], given: PolicySpec | None
) -> tuple[PolicySpec, str]:
    """Return the spec of all files, and a note on how it was found."""
    carrying = {path: spec for path, spec in stored.items() if spec is not None}
    bare = [path for path, spec in stored.items() if spec is None]
    if not carrying:
        if given is not None:
            return given, ""
        note = "no ttm_spec in the files: cameras, vectors, action parts and rate are inferred"
        return infer_spec_of_files(bare), note
    first, spec = next(iter(carrying.items()))
    if bare:
        raise UserError(
            f"{bare[0]} carries no spec, but {first} does; keep the two kinds in different folders"
        )
    for path, other in carrying.items():
        if other != spec:
            spec.require_compatible(other, ours=str(first), theirs=str(path))
    return spec, ""
