"""Opening the files of a data set, or none of them if all are as they were the last time.

What the files of a large data set said is kept in one file of the user's cache (`~/.cache/ttm`), in the
format of safetensors: the facts of the episodes, and their actions, proprioception, weights and timestamps,
which a training reads when it starts. It can be deleted at any time. Its name stands for the user's choices
and for the size, time of modification and time of change of all files. It lies with the user and not with
the data, whose author could otherwise vouch for files that are never looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ttm.datasets.console import track
from ttm.datasets.description import Choices, Description, describe_bare, describe_stored
from ttm.datasets.episode_file import damaged, data_group, demo_names, open_file, read_stored_spec
from ttm.datasets.files import layout_of_file
from ttm.datasets.frames import StoredCamera
from ttm.datasets.hdf5 import MOST_VALUES_BYTES
from ttm.datasets.reader import Array, EpisodeReader, KeptVectors, read_episodes, stamp_of
from ttm.datasets.spec_inference import Member
from ttm.policy.errors import UserError
from ttm.policy.files import partial_path
from ttm.policy.spec import PolicySpec

KEPT_FROM = 200  # data sets of fewer episodes open in a second or so, and are not kept in the cache
UNUSED_S = 90 * 86400  # files of the cache that were not used for so long are deleted
VARIABLE = "TTM_INDEX"  # names another folder for the cache; `none` for no cache
VERSION = 5  # of the files in the cache; those of other versions are not read
SUFFIX = ".facts"
FACTS = ("name", "num_samples", "instruction", "task", "success", "seed")
"""What is kept of an episode, beside its masks and the place of its vectors."""
OPTIONAL: Mapping[str, Any] = {
    "interventions": np.bool_,
    "loss_weights": np.float32,
    "timestamps": np.float64,
}
"""Vectors of one value for each tick that an episode may lack, with the types in which they are read."""

Opened = tuple[Description, list[EpisodeReader]]


def open_files(
    source: str | Path,
    files: Sequence[Path],
    choices: Choices,
    given: PolicySpec | None,
    like: PolicySpec | None,
) -> Opened:
    """Return the description of all files together, and their episodes in the order of the files.

    The arguments are those of `open_dataset`, with the files of its path. Raises `UserError` if there is
    no description, or a file is damaged.
    """
    folder = None if choices.allow_external else cache_folder()
    if folder is None:
        return _read(files, choices, given, like)
    chosen = [list(choices.cameras), list(choices.proprioception), str(choices.spec)]
    specs = [None if spec is None else spec.to_json() for spec in (given, like)]
    asked = _digest(VERSION, str(source), os.getcwd(), chosen, specs)
    read = [path for path in (*files, choices.spec) if path is not None and path.exists()]
    stamps = {str(path): stamp_of(path) for path in read}  # taken before they are read
    place = folder / f"{asked}-{_digest(stamps)}{SUFFIX}"
    with suppress(
        OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError
    ):
        found = _known(place, stamps)
        os.utime(place)
        return found
    described, episodes = _read(files, choices, given, like)
    if len(episodes) >= KEPT_FROM:
        with suppress(OSError):  # a disk that is full, or a home that cannot be written
            episodes = _keep(place, described, episodes, stamps)
            for other in folder.glob(f"*{SUFFIX}*"):
                unused = other.stat().st_mtime < time.time() - UNUSED_S
                if other != place and (unused or other.name.startswith(asked)):
                    other.unlink()
    return described, episodes


def _read(
    files: Sequence[Path], choices: Choices, given: PolicySpec | None, like: PolicySpec | None
) -> Opened:
    """Open each file once if all carry the spec of the first one; otherwise once more for the episodes."""
    described: Description | None = None
    specs: dict[Path, PolicySpec | None] = {}
    read: dict[Path, list[EpisodeReader]] = {}
    for path in track(files, "opening"):
        with choices.open(path) as file:
            spec = specs[path] = spec_of_file(file, path)
            if spec is None or spec != specs[files[0]]:
                continue
            if described is None:
                demo = next(((path, name) for name in demo_names(file)), None)
                described = describe_stored(spec, demo, choices, like)
            read[path] = read_episodes(file, path, described.spec, described.cameras)
    first, carried = next(((path, spec) for path, spec in specs.items() if spec), (None, None))
    for path, spec in specs.items() if carried else ():
        if spec is None:
            raise UserError(
                f"{path} carries no spec, but {first} does; keep the two kinds in different folders"
            )
        if carried and spec != carried:
            carried.require_compatible(spec, ours=str(first), theirs=str(path))
    if described is None and given is not None:
        described = Description(given)
    if described is None:
        demos = []
        for path in files:
            with choices.open(path) as file:
                demos += [(path, name) for name in demo_names(file)]
        described = describe_bare(demos, choices, like)
    for path in track(files, "reading"):
        if path not in read:
            with choices.open(path) as file:
                read[path] = read_episodes(file, path, described.spec, described.cameras)
    return described, [episode for path in files for episode in read[path]]


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


def _known(place: Path, stamps: Mapping[str, str]) -> Opened:
    """Return what a file of the cache holds. Raises errors of many types if it is gone or damaged."""
    with safe_open(place, "numpy") as cache:
        data = json.loads(cache.get_tensor("facts").tobytes())
    spec = PolicySpec.from_json(data["spec"])
    members = [
        Member(**{**each, "shape": each["shape"] and tuple(each["shape"])})
        for each in data["members"]
    ]
    described = Description(spec, tuple(members), _cameras(data["cameras"]), data["note"])
    episodes = []
    for path, (cameras, demos) in data["files"].items():
        stored = tuple(_cameras(cameras).items())
        for *facts, masks, starts in demos:
            kept = KeptVectors(place, stamps[path], starts) if starts else None
            known = dict(zip(FACTS, facts, strict=True), masks=frozenset(masks))
            episodes.append(EpisodeReader(Path(path), spec=spec, stored=stored, kept=kept, **known))
    return described, episodes


def _keep(
    place: Path, described: Description, episodes: list[EpisodeReader], stamps: Mapping[str, str]
) -> list[EpisodeReader]:
    """Write a file of the cache; return the episodes with the places of their vectors in it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    found: list[EpisodeReader] = []
    vectors: dict[str, list[Array]] = defaultdict(list)
    lengths: dict[str, int] = defaultdict(int)  # of `vectors`, in rows
    for path, group in groupby(track(episodes, "keeping"), key=lambda each: each.path):
        members, demos = list(group), []
        for episode, arrays in zip(members, _vectors(path, members), strict=True):
            starts = {key: lengths[key] for key in arrays}
            for key, values in arrays.items():
                vectors[key].append(values)
                lengths[key] += len(values)
            kept = KeptVectors(place, stamps[str(path)], starts) if starts else None
            found.append(replace(episode, kept=kept))
            facts = [getattr(episode, name) for name in FACTS]
            demos.append([*facts, sorted(episode.masks), starts])
        files[str(path)] = _camera_data(dict(members[0].stored)), demos
    data = {
        "spec": described.spec.to_json(),
        "members": [asdict(member) for member in described.members],
        "cameras": _camera_data(described.cameras),
        "note": described.note,
        "files": files,
    }
    tensors = {key: np.concatenate(parts) for key, parts in vectors.items()}
    tensors["facts"] = np.frombuffer(json.dumps(data).encode(), np.uint8)
    partial = partial_path(place).with_suffix(f".{os.getpid()}")
    try:
        save_file(tensors, partial)
        partial.replace(place)
    except SafetensorError as error:  # what it makes of a disk that is full
        raise OSError(str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    return found


def _vectors(path: Path, episodes: Sequence[EpisodeReader]) -> list[dict[str, Array]]:
    """Return the vectors of episodes of one file; none of an episode that has one of another shape."""
    found: list[dict[str, Array]] = []
    with suppress(UserError), open_file(path) as file:  # whoever reads the vectors gets the error
        for episode in episodes:
            demo, count, spec = file["data"][episode.name], episode.num_samples, episode.spec
            shapes: dict[str, tuple[int, ...]] = dict.fromkeys(OPTIONAL, (count,))
            shapes |= dict.fromkeys(("actions", "executed_actions"), (count, spec.action_size))
            shapes |= {f"obs/{each.name}": (count, each.size) for each in spec.proprioception}
            stored = {key: demo[key] for key in shapes if key in demo}
            sizes = {key: getattr(each, "shape", None) or (0,) for key, each in stored.items()}
            whole = all(shapes[key] in (size, (*size, 1)) for key, size in sizes.items())
            if not whole or any(each.nbytes > MOST_VALUES_BYTES for each in stored.values()):
                stored = {}
            found.append(
                {
                    key: np.asarray(each, OPTIONAL.get(key, np.float32)).reshape(shapes[key])
                    for key, each in stored.items()
                }
            )
    return found + [{}] * (len(episodes) - len(found))


def _camera_data(cameras: Mapping[str, StoredCamera]) -> dict[str, Any]:
    return {name: asdict(camera) for name, camera in cameras.items()}


def _cameras(data: Mapping[str, dict[str, Any]]) -> dict[str, StoredCamera]:
    return {
        name: StoredCamera(**{**each, "values": tuple(each["values"])})
        for name, each in data.items()
    }


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
