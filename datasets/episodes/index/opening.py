"""Opening the files of a data set, each once, or not at all where the index knows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ttm.datasets.description import Description, describe_bare, describe_stored
from ttm.datasets.episode_file import (
    damaged,
    data_group,
    demo_names,
    open_file,
    read_stored_spec,
    spec_of_text,
)
from ttm.datasets.episode_reader import EpisodeReader, read_episodes
from ttm.datasets.index.database import EpisodeIndex, FileRecord, default_path, stamp_of
from ttm.datasets.index.facts import (
    description_key,
    description_of,
    description_text,
    episodes_of,
    facts_key,
    facts_text,
)
from ttm.datasets.index.vectors import IndexedVectors
from ttm.datasets.layouts.recognition import layout_of_file
from ttm.datasets.observations.choices import Choices
from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

INDEX_FROM = 200
"""Smaller data sets open in a second or so, and are not put into the index."""


class Opening:
    """One opening of a data set. The arguments are those of `open_dataset`."""

    def __init__(
        self,
        files: Sequence[Path],
        choices: Choices,
        given: PolicySpec | None = None,
        like: PolicySpec | None = None,
    ) -> None:
        self._files = files
        self._choices, self._given, self._like = choices, given, like
        place = None if choices.allow_external else default_path()
        self._index = None if place is None else EpisodeIndex(place)
        self._stamps = {} if self._index is None else _stamps(files)
        self._records = {} if self._index is None else self._index.records(self._stamps)
        self._read: dict[Path, list[EpisodeReader]] = {}
        self._specs: dict[Path, PolicySpec | None] = {}

    @cached_property
    def described(self) -> Description:
        """The description of all files together. Raises `UserError` if there is none."""
        for file in track(self._files, "opening"):
            self._specs[file] = self._spec(file)
        if any(self._specs.values()):
            _require_alike(self._specs)
            return self._first
        return self._described_bare() if self._given is None else Description(self._given)

    def episodes(self) -> list[EpisodeReader]:
        """Return the episodes of all files, in the order of the files."""
        spec, key = self.described.spec, facts_key(self.described)
        found: list[EpisodeReader] = []
        for file in track(self._files, "reading"):
            record = self._records.get(file)
            if file in self._read:
                found += self._read[file]
            elif record is not None and record.key == key:
                found += episodes_of(record.facts, file, spec)
            else:
                with open_file(file) as handle:
                    self._read[file] = self._episodes(handle, file, self.described)
                found += self._read[file]
        if self._index is None or len(found) < INDEX_FROM:
            return found
        self._keep(key)
        store = IndexedVectors(self._index)
        return [replace(episode, kept=store) for episode in found]

    def _spec(self, file: Path) -> PolicySpec | None:
        """Return the spec that a file carries. If it is that of the first file, read its episodes too."""
        if (record := self._records.get(file)) is not None:
            return spec_of_text(record.spec) if record.spec else None
        with open_file(file) as handle:
            spec = _stored_spec(handle, file, self._choices)
            if spec is not None and spec == self._specs.get(self._files[0]):
                self._read[file] = self._episodes(handle, file, self._first)
        return spec

    @cached_property
    def _first(self) -> Description:
        """The description of the first file, which carries a spec."""
        first = self._files[0]
        spec = self._specs[first]
        assert spec is not None, "files with and without a spec are refused"
        return describe_stored(
            spec, next(iter(_demos([first], self._choices)), None), self._choices
        )

    def _survey(self) -> Description:
        return describe_bare(_demos(self._files, self._choices), self._choices, self._like)

    def _described_bare(self) -> Description:
        """Return the description of files that carry no spec, for which all of them are looked through."""
        if self._index is None or set(self._stamps) != set(self._files):
            return self._survey()
        try:
            key = description_key(self._stamps, self._choices, self._like)
        except OSError:
            return self._survey()  # says what is wrong with the spec file
        if (text := self._index.description(key)) is not None:
            return description_of(text)
        described = self._survey()
        if len(self._files) >= INDEX_FROM or self._num_demos() >= INDEX_FROM:
            self._index.store_description(key, description_text(described))
        return described

    def _num_demos(self) -> int:
        return len(_demos(self._files, self._choices))

    def _episodes(self, handle: Any, file: Path, described: Description) -> list[EpisodeReader]:
        return read_episodes(
            handle,
            file,
            described.spec,
            cameras=described.cameras,
            allow_external=self._choices.allow_external,
        )

    def _keep(self, key: str) -> None:
        """Put what was read into the index."""
        assert self._index is not None
        self._index.touch(self._records)
        records = {}
        for file, episodes in self._read.items():
            if file in self._stamps:
                spec = self._specs[file]
                text = "" if spec is None else spec.to_json()
                records[file] = FileRecord(self._stamps[file], text, key, facts_text(episodes))
        if records:
            self._index.store(records)


def _stamps(files: Iterable[Path]) -> dict[Path, str]:
    """Return the stamps of the files, taken before they are read; opening says which are gone."""
    return {file: stamp_of(file) for file in files if os.path.exists(file)}


def stored_spec(path: Path, choices: Choices) -> PolicySpec | None:
    """Return the spec that a file carries, or None.

    Raises `UserError` if the file cannot be read, or is in another layout than robomimic's.
    """
    with open_file(path) as file:
        return _stored_spec(file, path, choices)


def _stored_spec(file: Any, path: Path, choices: Choices) -> PolicySpec | None:
    layout = layout_of_file(file, allow_external=choices.allow_external)
    if layout is not None and not layout.is_read:
        raise UserError(layout.refusal(path))
    if data_group(file, allow_external=choices.allow_external) is None:
        raise damaged(
            path,
            "it has no group 'data', so it is no robomimic file",
            "the layouts that are read or converted are in datasets/README.md",
        )
    return read_stored_spec(file, allow_external=choices.allow_external)


def _require_alike(stored: Mapping[Path, PolicySpec | None]) -> None:
    """Raise `UserError` if specs that files carry differ, or only some carry one."""
    carrying = {path: spec for path, spec in stored.items() if spec is not None}
    bare = [path for path, spec in stored.items() if spec is None]
    first, spec = next(iter(carrying.items()))
    if bare:
        raise UserError(
            f"{bare[0]} carries no spec, but {first} does; keep the two kinds in different folders"
        )
    for path, other in carrying.items():
        if other != spec:
            spec.require_compatible(other, ours=str(first), theirs=str(path))


def _demos(paths: Sequence[Path], choices: Choices) -> list[tuple[Path, str]]:
    demos = []
    for path in paths:
        with open_file(path) as file:
            names = demo_names(file, allow_external=choices.allow_external)
            demos += [(path, name) for name in names]
    return demos
