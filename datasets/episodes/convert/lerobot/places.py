"""Where each episode of a LeRobot data set lies, in version 2.1 and in version 3.0."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ttm.datasets.access.links import require_inside
from ttm.datasets.convert.facts import read_lines
from ttm.datasets.episode_file import plain_text
from ttm.policy.errors import UserError

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")


@dataclass(frozen=True)
class Place:
    """One episode: its rows are those of its index in the data file."""

    root: Path
    """The folder of the data set."""
    allow_external: bool
    """Whether files may lie outside of it."""
    index: int
    length: int
    data: Path
    videos: Mapping[str, tuple[Path, float]]
    """Feature -> video file, and the time in it at which the episode starts, in seconds."""

    def file(self, path: str) -> Path:
        """Return the file at a path that the data set gives. Raises `UserError` if it lies outside of it."""
        file = self.root / path
        if not self.allow_external:
            require_inside([file], self.root)
        return file


def read_info(root: Path) -> dict[str, Any]:
    """Return `meta/info.json`. Raises `UserError` if it is damaged or of a version that is not read."""
    try:
        info = json.loads((root / INFO).read_text())
        version, _ = info["codebase_version"], info["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{root / INFO} is damaged ({error}); fetch the data set again") from error
    if version not in VERSIONS:
        raise UserError(
            f"{root} is a LeRobot data set of version {version}, which is not read; convert it with "
            "LeRobot's own script first, or take one of " + ", ".join(VERSIONS)
        )
    return dict(info)


def read_places(
    root: Path, info: Mapping[str, Any], *, allow_external: bool = False
) -> list[Place]:
    """Return the place of every episode, in their order. Raises `UserError` if one lies outside of `root`."""
    try:
        rows = _rows_v3(root) if info["codebase_version"] == "v3.0" else _rows_v2(root, info)
        rows.sort(key=lambda row: row["episode_index"])
        places = [_place(root, info, row, allow_external) for row in rows]
    except (OSError, KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise UserError(
            f"{root}: the list of its episodes is damaged ({error}); fetch the data set again"
        ) from error
    if not allow_external:
        videos = (file for place in places for file, _ in place.videos.values())
        require_inside({*(place.data for place in places), *videos}, root)
    return places


def read_tasks(root: Path, info: Mapping[str, Any]) -> dict[int, str]:
    """Return task index -> instruction."""
    try:
        if info["codebase_version"] != "v3.0":
            lines = read_lines(root / "meta/tasks.jsonl")
            tasks = {row["task_index"]: row["task"] for row in lines}
        else:
            table = pq.read_table(root / "meta/tasks.parquet")
            text = next(name for name in table.column_names if name != "task_index")
            columns = (table["task_index"].to_pylist(), table[text].to_pylist())
            tasks = dict(zip(*columns, strict=True))
        for task in tasks.values():
            if not isinstance(task, str):
                raise ValueError(f"the task {task!r} is no text")
        return {index: plain_text(task, "a task") for index, task in tasks.items()}
    except (OSError, KeyError, ValueError, StopIteration, pa.ArrowException) as error:
        raise UserError(
            f"{root}: the list of its tasks is damaged ({error}); fetch the data set again"
        ) from error


def _rows_v3(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in sorted((root / "meta/episodes").glob("*/*.parquet")):
        names = [n for n in pq.read_schema(file).names if not n.startswith(("stats/", "tasks"))]
        rows += pq.read_table(file, columns=names).to_pylist()
    return rows


def _rows_v2(root: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for line in read_lines(root / "meta/episodes.jsonl"):
        index = line["episode_index"]
        row = {"episode_index": index, "length": line["length"]}
        rows.append({**row, "chunk": index // info["chunks_size"]})
    return rows


def _place(
    root: Path, info: Mapping[str, Any], row: Mapping[str, Any], allow_external: bool
) -> Place:
    keys = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    index, length = row["episode_index"], row["length"]

    def file(pattern: str, kind: str, **names: str) -> Path:
        if info["codebase_version"] != "v3.0":
            numbers = {"episode_chunk": row["chunk"], "episode_index": index}
        else:
            parts = ("chunk_index", "file_index")
            numbers = {part: int(row[f"{kind}/{part}"]) for part in parts}
        return root / _filled(info[pattern], {**numbers, **names})

    def start_s(key: str) -> float:
        is_shared = info["codebase_version"] == "v3.0"
        return float(row[f"videos/{key}/from_timestamp"]) if is_shared else 0.0

    videos = {k: (file("video_path", f"videos/{k}", video_key=k), start_s(k)) for k in keys}
    return Place(root, allow_external, index, length, file("data_path", "data"), videos)


def _filled(pattern: str, values: Mapping[str, int | str]) -> str:
    """Return a path's pattern filled in. Raises `ValueError` for fields that LeRobot has not."""
    for _, name, width, conversion in Formatter().parse(pattern):
        if name is not None and (
            name not in values or conversion or not re.fullmatch(r"(0?\d?d)?", width or "")
        ):
            raise ValueError(f"the path {pattern!r} has the field {name!r}")
    return pattern.format(**values)
