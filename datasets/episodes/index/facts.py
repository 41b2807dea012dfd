"""Episodes and descriptions of data sets as JSON, for the index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ttm.datasets.description import Description
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.members import Member
from ttm.datasets.observations.stored_camera import StoredCamera
from ttm.policy.spec import PolicySpec


def facts_key(described: Description) -> str:
    """Return what stands for a description: episodes that were read by it can be read by an equal one."""
    return _digest(described.spec.to_json(), _cameras_data(described.cameras))


def facts_text(episodes: Sequence[EpisodeReader]) -> str:
    """Return the facts of all episodes of a file as JSON."""
    demos = [
        [e.name, e.num_samples, e.instruction, e.task, e.success, e.seed, sorted(e.masks)]
        for e in episodes
    ]
    return json.dumps([_cameras_data(dict(episodes[0].stored) if episodes else {}), demos])


def episodes_of(text: str, path: Path, spec: PolicySpec) -> list[EpisodeReader]:
    """Return the episodes of the file `path` whose facts `facts_text` wrote."""
    cameras, demos = json.loads(text)
    stored = tuple(_cameras(cameras).items())
    return [
        EpisodeReader(
            path, name, spec, length, words, task, success, seed, frozenset(masks), stored
        )
        for name, length, words, task, success, seed, masks in demos
    ]


def description_key(stamps: Mapping[Path, str], choices: Choices, like: PolicySpec | None) -> str:
    """Return what stands for all that the description of files without a spec depends on.

    Raises `OSError` if the user's spec file cannot be read.
    """
    given = (
        "" if choices.spec is None else choices.spec.read_text(encoding="utf-8", errors="replace")
    )
    chosen = [list(choices.cameras), list(choices.proprioception), str(choices.spec), given]
    files = [[str(path.absolute()), stamp] for path, stamp in stamps.items()]
    return _digest(chosen, None if like is None else like.to_json(), files)


def description_text(described: Description) -> str:
    """Return a description as JSON."""
    members = [asdict(member) for member in described.members]
    cameras = _cameras_data(described.cameras)
    return json.dumps([described.spec.to_json(), members, cameras, described.note])


def description_of(text: str) -> Description:
    """Return the description that `description_text` wrote."""
    spec, members, cameras, note = json.loads(text)
    return Description(
        PolicySpec.from_json(spec),
        tuple(_member(member) for member in members),
        _cameras(cameras),
        note,
    )


def _member(data: dict[str, Any]) -> Member:
    shape = data.pop("shape")
    return Member(**data, shape=None if shape is None else tuple(shape))


def _cameras_data(cameras: Mapping[str, StoredCamera]) -> dict[str, Any]:
    return {name: asdict(camera) for name, camera in cameras.items()}


def _cameras(data: Mapping[str, dict[str, Any]]) -> dict[str, StoredCamera]:
    return {
        name: StoredCamera(**{**each, "values": tuple(each["values"])})
        for name, each in data.items()
    }


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
