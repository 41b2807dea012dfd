"""Opening the files of a data set: each of them, or only those that changed since the last time.

What the files of a large data set said when they were last read is kept in one file of the user's cache
(`~/.cache/ttm`), for a data set and the user's choices: the facts of the episodes, and their actions,
proprioception, weights and timestamps, which a training reads when it starts. It can be deleted at any
time. What it says of a file counts while that file has the same size, time of modification and time of
change. It lies with the user and not with the data, whose author could otherwise vouch for files that are
never looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from safetensors.numpy import save

from ttm.datasets.console import track
from ttm.datasets.description import Choices, Description, describe_bare, describe_stored
from ttm.datasets.episode_file import (
    damaged,
    data_group,
    demo_names,
    open_file,
    read_stored_spec,
    spec_of_text,
)
from ttm.datasets.files import layout_of_file
from ttm.datasets.frames import StoredCamera
from ttm.datasets.hdf5 import MOST_VALUES_BYTES
from ttm.datasets.reader import EpisodeReader, KeptVectors, read_episodes, stamp_of
from ttm.datasets.spec_inference import Demo, Member
from ttm.policy.errors import UserError
from ttm.policy.files import PARTIAL_SUFFIX
from ttm.policy.spec import PolicySpec

KEPT_FROM = 200  # data sets of fewer episodes open in a second or so, and are not kept in the cache
UNUSED_S = 90 * 86400  # files of the cache that were not used for so long are deleted
VARIABLE = "TTM_INDEX"  # names another folder for the cache; `none` for no cache
VERSION = 4  # of the files in the cache; those of other versions are not read
SUFFIX = ".facts"
SIZE_BYTES = 8  # the last bytes of a file of the cache, which are the size of its facts
FACTS = ("name", "num_samples", "instruction", "task", "success", "seed")
"""What is kept of an episode, beside its masks and the place of its vectors."""

OPTIONAL = {
    "executed_actions": np.float32,
    "interventions": np.bool_,
    "loss_weights": np.float32,
    "timestamps": np.float64,
}
"""Vectors that an episode may lack, with the types in which they are read."""


class Opening:
    """One opening of a data set. The arguments are those of `open_dataset`, with the files of its path."""

    def __init__(
        self,
        source: str | Path,
        files: Sequence[Path],
        choices: Choices,
        given: PolicySpec | None,
        like: PolicySpec | None,
    ) -> None:
        self._files, self._choices, self._given, self._like = files, choices, given, like
        text = ""
        if choices.spec is not None:
            with suppress(OSError):  # reading the spec file says what is wrong with it
                text = choices.spec.read_text("utf-8", "replace")
        chosen = [list(choices.cameras), list(choices.proprioception), str(choices.spec), text]
        specs = [None if spec is None else spec.to_json() for spec in (given, like)]
        asked = _digest(str(source), os.getcwd(), chosen, specs)
        self._known = Known(None if choices.allow_external else cache_folder(), asked, files)
        self._read: dict[Path, list[EpisodeReader]] = {}
        self._specs: dict[Path, PolicySpec | None] = {}

    def open(self) -> tuple[Description, list[EpisodeReader]]:
        """Return the description of all files together, and their episodes in the order of the files.

        Raises `UserError` if there is no description, or a file is damaged.
        """
        for file in track(self._files, "opening"):
            self._specs[file] = self._spec(file)
        described = self._described()
        key = _digest(described.spec.to_json(), _cameras_data(described.cameras))
        episodes: list[EpisodeReader] = []
        for file in track(self._files, "reading"):
            facts = self._known.files.get(str(file))
            if facts is not None and self._known.key == key:
                episodes += self._known.episodes(file, facts, described.spec)
                continue
            if file not in self._read:
                with self._choices.open(file) as handle:
                    self._read[file] = read_episodes(
                        handle, file, described.spec, described.cameras
                    )
            episodes += self._read[file]
        if self._known.folder is not None and len(episodes) >= KEPT_FROM:
            spec = self._specs[self._files[0]]
            facts = {
                "version": VERSION,
                "spec": "" if spec is None else spec.to_json(),
                "key": key,
                "of": self._known.state(self._files if spec is None else self._files[:1]),
                "described": _description_data(described),
            }
            with suppress(OSError):  # a disk that is full, or a home that cannot be written
                episodes = self._known.keep(facts, episodes)
        return described, episodes

    def _spec(self, file: Path) -> PolicySpec | None:
        """Return the spec that a file carries. If it is that of the first file, read its episodes too."""
        if str(file) in self._known.files:
            return spec_of_text(self._known.spec) if self._known.spec else None
        with self._choices.open(file) as handle:
            spec = spec_of_file(handle, file)
            if spec is not None and spec == self._specs.get(self._files[0]):
                described = self._of_first
                self._read[file] = read_episodes(handle, file, described.spec, described.cameras)
        return spec

    @cached_property
    def _of_first(self) -> Description:
        """The description by the first file, which carries a spec."""
        first = self._files[0]
        spec = self._specs[first]
        assert spec is not None, "files with and without a spec are refused"
        if self._known.described is not None and self._known.of == self._known.state([first]):
            return self._known.described
        return describe_stored(spec, next(iter(self._demos(first)), None), self._choices)

    def _described(self) -> Description:
        carrying = [(path, spec) for path, spec in self._specs.items() if spec is not None]
        if carrying:
            first, spec = carrying[0]
            for path, other in self._specs.items():
                if other is None:
                    raise UserError(
                        f"{path} carries no spec, but {first} does; keep the two kinds in different folders"
                    )
                if other != spec:
                    spec.require_compatible(other, ours=str(first), theirs=str(path))
            return self._of_first
        if self._given is not None:
            return Description(self._given)
        if self._known.described is not None and self._known.of == self._known.state(self._files):
            return self._known.described
        demos = [demo for file in self._files for demo in self._demos(file)]
        return describe_bare(demos, self._choices, self._like)

    def _demos(self, path: Path) -> list[Demo]:
        with self._choices.open(path) as file:
            return [(path, name) for name in demo_names(file)]


def cache_folder() -> Path | None:
    """Return where facts are kept for this user; None if that is switched off, or there is no home."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "none":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return Path(chosen).expanduser() if chosen else cache / "ttm" / "episodes"
    except RuntimeError:  # no home
        return None


class Known:
    """What the cache knows of a data set, and what it is given to keep; nothing without a folder."""

    def __init__(self, folder: Path | None, asked: str, files: Sequence[Path]) -> None:
        """asked: stands for the path of the data set, and how it is to be read."""
        self.folder, self._asked = folder, asked
        self._place: Path | None = None
        self.spec = ""
        """The spec that the files carry, as JSON; empty if they carry none."""
        self.key = ""
        """Stands for the spec and the cameras by which the episodes were read."""
        self.of = ""
        """Stands for the files that `described` depends on."""
        self.described: Description | None = None
        self.files: dict[str, dict[str, Any]] = {}
        """Path -> facts, of those files that are as they were."""
        self._stamps: dict[str, str] = {}  # taken before the files are read
        if folder is None:
            return
        self._stamps = {str(path): stamp_of(path) for path in files if os.path.exists(path)}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            place = max(folder.glob(f"{asked}-*{SUFFIX}"), key=os.path.getmtime)
            with place.open("rb") as file:
                file.seek(-SIZE_BYTES, os.SEEK_END)
                size = int.from_bytes(file.read(), "little")
                file.seek(-SIZE_BYTES - size, os.SEEK_END)
                data = json.loads(file.read(size))
            facts = data["files"].items() if data["version"] == VERSION else ()
            found = {path: each for path, each in facts if each["stamp"] == self._stamps.get(path)}
            known = place, data["spec"], data["key"], data["of"], _description(data["described"])
            self._place, self.spec, self.key, self.of, self.described = known
            self.files = found

    def state(self, files: Sequence[Path]) -> str:
        """Return what changes when one of the files does; a description depends on it."""
        return _digest([[str(file), self._stamps.get(str(file))] for file in files])

    def episodes(
        self, path: Path, facts: Mapping[str, Any], spec: PolicySpec
    ) -> list[EpisodeReader]:
        """Return the episodes of a file by its facts."""
        stored = tuple(_cameras(facts["cameras"]).items())
        found = []
        for *values, masks, start, size in facts["demos"]:
            known = dict(zip(FACTS, values, strict=True), masks=frozenset(masks))
            kept = None
            if self._place is not None and size:
                kept = KeptVectors(self._place, start, size, facts["stamp"])
            found.append(EpisodeReader(path=path, spec=spec, stored=stored, kept=kept, **known))
        return found

    def keep(self, data: Mapping[str, Any], episodes: list[EpisodeReader]) -> list[EpisodeReader]:
        """Write a file of the cache: the vectors, then the facts as JSON, then the size of these.

        Return the episodes with the places of their vectors. Raises `OSError` if it cannot be written.
        """
        assert self.folder is not None
        place = self.folder / f"{self._asked}-{_digest(self._stamps, data['key'])}{SUFFIX}"
        if self._place == place:
            os.utime(place)
            return episodes
        self.folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, dict[str, Any]] = {}
        found: list[EpisodeReader] = []
        suffix = f"{SUFFIX}{PARTIAL_SUFFIX}"
        with NamedTemporaryFile(dir=self.folder, suffix=suffix, delete=False) as target:
            try:
                for path, group in groupby(track(episodes, "keeping"), key=lambda each: each.path):
                    members, demos = list(group), []
                    stamp = self._stamps.get(str(path), "")
                    for episode, blob in zip(members, _blobs(path, members), strict=True):
                        start, size = target.tell(), target.write(blob)
                        kept = KeptVectors(place, start, size, stamp) if size else None
                        found.append(replace(episode, kept=kept))
                        facts = [getattr(episode, name) for name in FACTS]
                        demos.append([*facts, sorted(episode.masks), start, size])
                    cameras = _cameras_data(dict(members[0].stored))
                    files[str(path)] = {"stamp": stamp, "cameras": cameras, "demos": demos}
                text = json.dumps({**data, "files": files}).encode()
                target.write(text + len(text).to_bytes(SIZE_BYTES, "little"))
                target.close()
                os.replace(target.name, place)
            except BaseException:
                Path(target.name).unlink(missing_ok=True)
                raise
        for other in self.folder.glob(f"*{SUFFIX}*"):
            with suppress(OSError):
                unused = other.stat().st_mtime < time.time() - UNUSED_S
                if other != place and (unused or other.name.startswith(f"{self._asked}-")):
                    other.unlink()
        return found


def _blobs(path: Path, episodes: Sequence[EpisodeReader]) -> list[bytes]:
    """Return the vectors of episodes of one file, as safetensors stores them.

    Nothing stands for an episode that lacks one, or whose vectors have another length than its actions.
    """
    kept = [None if each.kept is None else each.kept.blob() for each in episodes]
    if None not in kept:
        return [blob for blob in kept if blob is not None]
    blobs: list[bytes] = []
    with suppress(UserError), open_file(path) as file:  # whoever reads the vectors gets the error
        for episode in episodes:
            demo, spec = file["data"][episode.name], episode.spec
            names = ["actions", *(f"obs/{vector.name}" for vector in spec.proprioception)]
            types: dict[str, Any] = dict.fromkeys(names, np.float32)
            types |= {key: kind for key, kind in OPTIONAL.items() if key in demo}
            stored = [demo[key] for key in types if key in demo]
            lengths = {(getattr(each, "shape", None) or ())[:1] for each in stored}
            whole = len(stored) == len(types) and lengths == {(episode.num_samples,)}
            if not whole or any(each.nbytes > MOST_VALUES_BYTES for each in stored):
                blobs.append(b"")
                continue
            arrays = {key: np.ascontiguousarray(demo[key], kind) for key, kind in types.items()}
            blobs.append(save(arrays))
    return blobs + [b""] * (len(episodes) - len(blobs))


def _description_data(described: Description) -> list[Any]:
    members = [asdict(member) for member in described.members]
    return [described.spec.to_json(), members, _cameras_data(described.cameras), described.note]


def _description(data: Sequence[Any]) -> Description:
    spec, members, cameras, note = data
    shapes = [None if each["shape"] is None else tuple(each["shape"]) for each in members]
    found = [Member(**{**each, "shape": s}) for each, s in zip(members, shapes, strict=True)]
    return Description(PolicySpec.from_json(spec), tuple(found), _cameras(cameras), note)


def _cameras_data(cameras: Mapping[str, StoredCamera]) -> dict[str, Any]:
    return {name: asdict(camera) for name, camera in cameras.items()}


def _cameras(data: Mapping[str, dict[str, Any]]) -> dict[str, StoredCamera]:
    return {
        name: StoredCamera(**{**each, "values": tuple(each["values"])})
        for name, each in data.items()
    }


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def spec_of_file(file: Any, path: Path) -> PolicySpec | None:
    """Return the spec that an open file carries, or None.

    Raises `UserError` if it is in another layout than robomimic's.
    """
    layout = layout_of_file(file)
    if layout is not None and not layout.is_read:
        raise UserError(layout.refusal(path))
    if data_group(file) is None:
        raise damaged(
            path,
            "it has no group 'data', so it is no robomimic file",
            "the layouts that are read or converted are in datasets/README.md",
        )
    return read_stored_spec(file)
