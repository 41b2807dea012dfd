"""Copies whole demos, with all that is in them, into one HDF5 file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ttm.datasets.access.write_guard import new_file, reserve
from ttm.datasets.episode_file import open_file
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.observations.simulator_state import json_object
from ttm.datasets.progress import track
from ttm.policy.errors import UserError

MEANING = ("macros_image_convention", "ttm_spec")
"""Attributes of `data` without which a file's arrays mean something else."""

OWN = ("total", "problem_info")
"""Attributes of `data` that are not taken over: the new file counts its own ticks, and LIBERO's
instruction, which stands once a file, becomes that of each demo."""

ROOM_A_MEMBER, ROOM_A_ROW = 2**14, 2**8
"""Bytes that HDF5 may take beside the values of a member, and of a row of varying length."""

Masks = Mapping[EpisodeReader, Iterable[str]]


def write_demos(path: Path, episodes: Sequence[EpisodeReader], masks: Masks | None = None) -> None:
    """Copy the demos of `episodes` to the new file `path`, as demo_0, demo_1, … in their order.

    Every member and attribute of a demo is copied as it is stored, including those that this
    project does not read. Of the files' attributes those are kept that all files share.

    masks: the filter keys of each episode; None keeps those that it has.
    """
    attributes = shared_attributes({episode.path for episode in episodes})
    members: dict[str, list[bytes]] = defaultdict(list)
    with new_file(path) as target:
        data = target.create_group("data")
        for number, episode in enumerate(track(episodes, "copying")):
            name = f"demo_{number}"
            with open_file(episode.path) as source:
                demo = source["data"][episode.name]
                size = most_bytes(demo)
            reserve(target, size)  # while no source is open, which would be blamed for a full disk
            with open_file(episode.path) as source:
                source.copy(source["data"][episode.name], data, name)
            if episode.instruction and "language_instruction" not in data[name].attrs:
                data[name].attrs["language_instruction"] = episode.instruction
            for key in sorted(episode.masks if masks is None else masks[episode]):
                members[key].append(name.encode())
        data.attrs.update({**attributes, "total": sum(each.num_samples for each in episodes)})
        for key, names in members.items():
            target.create_dataset(f"mask/{key}", data=np.array(names))


def most_bytes(demo: h5py.Group) -> int:
    """Return how much space a copy of a demo takes at most."""
    file = demo.file
    if len(file["data"]) == 1:
        return int(file.id.get_filesize())
    sizes = [0]

    def add(name: str, member: Any) -> None:
        if not isinstance(member, h5py.Dataset):
            return
        sizes.append(member.id.get_storage_size() + ROOM_A_MEMBER)
        if h5py.check_vlen_dtype(member.dtype) is not None:  # values lie elsewhere in the file
            sizes.extend(row.nbytes + ROOM_A_ROW for row in member[()].ravel())

    demo.visititems(add)
    return min(sum(sizes), int(file.id.get_filesize()))


def shared_attributes(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the attributes of `data` that all the files have alike.

    Raises `UserError` if they differ in one of `MEANING`.
    """
    found: dict[Path, dict[str, Any]] = {}
    for path in sorted(paths):
        with open_file(path) as file:
            found[path] = dict(file["data"].attrs)
    (first, shared), *others = found.items()
    for path, attributes in others:
        for name in MEANING:
            if not _same(shared.get(name), attributes.get(name)):
                raise UserError(
                    f"{first} and {path} differ in the attribute '{name}'; one file cannot hold "
                    "both: convert one of them with ttm data convert, or keep them apart"
                )
        shared = _shared(shared, attributes)
    return {name: value for name, value in shared.items() if name not in OWN}


def _shared(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are alike. Of different `env_args`, what is alike in them stays."""
    shared = {k: v for k, v in mine.items() if k in other and _same(v, other[k])}
    if "env_args" not in shared:
        known = _alike(json_object(mine.get("env_args")), json_object(other.get("env_args")))
        shared |= {"env_args": json.dumps(known)} if known else {}
    return shared


def _alike(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in mine.items():
        if isinstance(value, dict) and isinstance(other.get(key), dict):
            found[key] = _alike(value, other[key])
        elif key in other and value == other[key]:
            found[key] = value
    return found


def _same(mine: Any, other: Any) -> bool:
    return bool(np.array_equal(mine, other))
