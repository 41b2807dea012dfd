"""Many episodes as one data set: a file, a folder of files, or a glob."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from ttm.datasets.episode_reader import (
    Episode,
    damaged,
    demo_names,
    open_file,
    read_episodes,
    read_stored_spec,
)
from ttm.datasets.infer_spec import infer_spec
from ttm.datasets.instructions import DEFAULT_INSTRUCTION
from ttm.datasets.layout import SUFFIXES, natural_key
from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SPLIT_EVERY = 10
"""Without masks, every tenth episode is held out."""


class EpisodeDataset(Sequence[Episode]):
    """Episodes of one spec. `note` says what was assumed about them, for the user to read; often empty."""

    def __init__(
        self, episodes: Sequence[Episode], spec: PolicySpec, *, source: str, note: str = ""
    ) -> None:
        self.spec = spec
        self.source = source
        self.note = note
        self._episodes = list(episodes)

    def __len__(self) -> int:
        return len(self._episodes)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> EpisodeDataset: ...

    def __getitem__(self, index: int | slice) -> Episode | EpisodeDataset:
        if isinstance(index, slice):
            return self._subset(self._episodes[index], self.note)
        return self._episodes[index]

    @property
    def num_ticks(self) -> int:
        """Ticks of all episodes together."""
        return sum(episode.num_samples for episode in self._episodes)

    @property
    def mask_keys(self) -> list[str]:
        """The filter keys that some file has."""
        return sorted(set().union(*(episode.masks for episode in self._episodes)))

    def filter(self, key: str) -> EpisodeDataset:
        """The episodes that `mask/<key>` names.

        For "train" and "valid", where the masks of the data set do not hold both: every tenth episode (or the
        last one of fewer than ten) is "valid" and the rest "train", which `note` then says. The split depends
        on the order of the episodes alone, so that it is the same every time.
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
        note = f"no mask/train and mask/valid: {len(held_out)} of {count} episodes (every tenth) are held out"
        return self._subset(chosen, f"{self.note}; {note}" if self.note else note)

    def _subset(self, episodes: Sequence[Episode], note: str) -> EpisodeDataset:
        return EpisodeDataset(episodes, self.spec, source=self.source, note=note)


def open_dataset(path: str | Path, *, spec: PolicySpec | None = None) -> EpisodeDataset:
    """Open a data set: an HDF5 file, a folder (searched through, *.hdf5 and *.h5), or a glob in quotes.

    Only shapes and attributes are read. The spec is the one that the files carry, the same in all of them;
    files that carry none get `spec`, or what `infer_spec` makes of all of them together.
    """
    files = find_files(path)
    stored = {file: _stored_spec(file) for file in track(files, "opening")}
    spec, note = _common_spec(stored, spec)
    episodes: list[Episode] = []
    for file in track(files, "reading"):
        with open_file(file) as handle:
            episodes += _read_episodes(handle, file, spec)
    if not episodes:
        raise UserError(
            f"{path} has no episode (data/demo_0, …); record one with `ttm collect` or recorder_node"
        )
    mute = sum(not episode.instruction for episode in episodes)
    if mute:
        note = "; ".join(
            filter(
                None,
                [note, f"{mute} episodes have no instruction: '{DEFAULT_INSTRUCTION}' is taken"],
            )
        )
    return EpisodeDataset(episodes, spec, source=str(path), note=note)


def find_files(path: str | Path) -> list[Path]:
    """The HDF5 files that `path` (file, folder or glob) means, demo_2 before demo_10; none is a `UserError`.

    Hidden files are left out: episodes in progress are such.
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
    """The first difference of two specs in words, or None."""
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
    carrying = {path: spec for path, spec in stored.items() if spec is not None}
    bare = [path for path, spec in stored.items() if spec is None]
    if not carrying:
        if given is not None:
            return given, ""
        return _inferred(
            bare
        ), "no ttm_spec in the files: cameras, vectors, action parts and rate are inferred"
    first, spec = next(iter(carrying.items()))
    if bare:
        raise UserError(
            f"{bare[0]} carries no spec, but {first} does; keep the two kinds in different folders"
        )
    for path, other in carrying.items():
        if other != spec:
            spec.require_compatible(other, ours=str(first), theirs=str(path))
    return spec, ""


def _inferred(paths: Sequence[Path]) -> PolicySpec:
    demos = []
    for path in paths:
        with open_file(path) as file:
            demos += [(path, name) for name in demo_names(file)]
    try:
        return infer_spec(demos)
    except (KeyError, OSError) as error:
        raise damaged(paths[0], f"no spec can be inferred ({error})") from error


def _read_episodes(file: Any, path: Path, spec: PolicySpec) -> list[Episode]:
    try:
        return read_episodes(file, path, spec)
    except (KeyError, OSError, AttributeError) as error:
        raise damaged(path, str(error)) from error
