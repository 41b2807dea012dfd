"""Reads LeRobot data sets of version 2.0, 2.1 and 3.0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ttm.datasets.episode_file import plain_text
from ttm.datasets.formats import lerobot
from ttm.datasets.formats.recording import (
    FrameStream,
    Recording,
    Source,
    fields_of,
    index_labels,
    read_facts,
    read_lines,
    read_spec,
    survey_actions,
)
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames, decode_image
from ttm.datasets.hdf5 import require_inside, require_no_way_out
from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec, ProprioceptionSpec

DAMAGE = (OSError, KeyError, ValueError, pa.ArrowException)
VERSIONS = ("v2.0", "v2.1", "v3.0")
READ = {
    lerobot.ACTION,
    lerobot.REWARD,
    lerobot.DONE,
    lerobot.SUCCESS,
    *lerobot.OURS,
    *lerobot.INDICES,
}
"""Features that are read, beside observations."""


@dataclass(frozen=True)
class Observed:
    """What of a data set's features is read, by our names for it."""

    cameras: dict[str, CameraSpec]
    images: dict[str, str]
    """Name of a camera -> feature."""
    vectors: dict[str, str]
    """Name of a vector -> feature."""
    labels: dict[str, tuple[str, ...]]
    """Name of a vector -> a label for each value."""
    videos: set[str]
    """Names of cameras whose frames are a video, and not images."""
    skipped: list[str]
    """Features that are not read, each with the reason."""


@dataclass(frozen=True)
class Place:
    """One episode: its rows are those of its index in the data file."""

    index: int
    length: int
    data: Path
    videos: Mapping[str, tuple[Path, float]]
    """Feature -> video file, and the time in it at which the episode starts, in seconds."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.data}: episode {self.index}"


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open the data set in the folder `path`."""
    if not options.choices.allow_external:
        require_no_way_out(path)
    return _LeRobot(path, options).source()


class _LeRobot:
    """An opened data set. The last data file is kept in memory."""

    def __init__(self, root: Path, options: ConvertOptions) -> None:
        self._root, self._options = root, options
        self._info = _read_info(root)
        self._is_v3 = self._info["codebase_version"] == "v3.0"
        self._places = self._read_places()
        self._tasks = self._read_tasks()
        self._found = _observed(self._info["features"], str(root))
        self._read = lru_cache(maxsize=1)(_read_table)
        self._stored = read_spec(root / "meta")

    def source(self) -> Source:
        """Return what is converted."""
        info, found, where = self._info, self._found, str(self._root)
        actions = (_matrix(self._rows(place), lerobot.ACTION) for place in self._places)
        parts, rounding = survey_actions(actions, where)
        spec = self._stored or PolicySpec(
            robot=str(info.get("robot_type") or self._options.robot or "unknown"),
            cameras=tuple(found.cameras.values()),
            proprioception=tuple(ProprioceptionSpec(*each) for each in found.labels.items()),
            actions=parts,
            rate_hz=float(info["fps"]),
        )
        lengths = {place.index: place.length for place in self._places}
        facts, stale = read_facts(self._root / "meta", lengths)
        masks = _masks(info, len(self._places))

        def recordings() -> Iterator[Recording]:
            for place, listed in zip(self._places, masks, strict=True):
                own = dict(facts.get(place.index, {}))
                if any(masks):  # also of our own, to which somebody has given splits since
                    own["masks"] = listed
                yield self._recording(place, spec, own)

        notes = [*rounding, *filter(None, [stale])]
        if found.videos:
            notes.append("the frames were stored as lossy video; they are as the video has them")
        if found.skipped:
            notes.append(f"not converted: {', '.join(found.skipped)}")
        return Source(
            spec=spec,
            num_episodes=len(self._places),
            recordings=recordings,
            has_own_spec=self._stored is not None,
            notes=tuple(notes),
        )

    def _recording(self, place: Place, spec: PolicySpec, facts: Mapping[str, Any]) -> Recording:
        rows = self._rows(place)

        def column(key: str, dtype: Any) -> Any:
            return _values(rows, key).astype(dtype) if key in rows.column_names else None

        success, executed = column(lerobot.SUCCESS, bool), column(lerobot.EXECUTED, np.float32)
        return Recording(
            name=place.name,
            actions=_matrix(rows, lerobot.ACTION).astype(np.float32),
            vectors=self._vectors(rows, spec),
            cameras={
                name: FrameStream(partial(self._frames, place, name, spec.rate_hz))
                for name in self._found.cameras
            },
            instruction=self._tasks.get(int(rows["task_index"][0].as_py()), ""),
            success=facts.get("success", None if success is None else bool(success.any())),
            timestamps=_capture_times(rows, spec.rate_hz),
            rewards=column(lerobot.REWARD, np.float32),
            dones=column(lerobot.DONE, np.int64),
            executed_actions=None if executed is None else executed.reshape(len(rows), -1),
            loss_weights=column(lerobot.WEIGHT, np.float32),
            **fields_of(facts),
        )

    def _vectors(self, rows: pa.Table, spec: PolicySpec) -> dict[str, npt.NDArray[np.float32]]:
        if self._stored is None:
            vectors = self._found.vectors.items()
            return {name: _matrix(rows, key).astype(np.float32) for name, key in vectors}
        stops = np.cumsum([vector.size for vector in spec.proprioception])
        if not len(stops):
            return {}
        parts = np.split(_matrix(rows, lerobot.STATE).astype(np.float32), stops, axis=1)
        names = (vector.name for vector in spec.proprioception)
        return dict(zip(names, parts[:-1], strict=True))

    def _frames(self, place: Place, camera: str, rate_hz: float) -> Iterator[Frames]:
        key = self._found.images[camera]
        if camera in self._found.videos:
            file, start_s = place.videos[key]
            yield from lerobot.read_video(file, start_s, place.length, rate_hz)
            return
        for row in self._rows(place)[key]:
            stored = row.as_py()
            try:
                yield decode_image(stored["bytes"] or self._file(stored["path"]).read_bytes())
            except (OSError, TypeError) as error:
                raise UserError(
                    f"{place.name} has a damaged image ({error}); fetch the data set again"
                ) from error

    def _file(self, path: str) -> Path:
        """Return the file at a path that the data set gives. Raises `UserError` if it lies outside of it."""
        file = self._root / path
        if not self._options.choices.allow_external:
            require_inside([file], self._root)
        return file

    def _rows(self, place: Place) -> pa.Table:
        """Return the rows of an episode."""
        whole = self._read(place.data)
        mine = np.flatnonzero(whole["episode_index"].to_numpy() == place.index)
        if len(mine) != place.length:
            raise UserError(
                f"{place.name} has {len(mine)} rows, not {place.length} as listed; fetch the data set again"
            )
        if len(mine) and mine[-1] - mine[0] >= len(mine):
            raise UserError(
                f"{place.name} has rows that do not follow one another; sort them by their index"
            )
        rows = whole.slice(mine[0] if len(mine) else 0, len(mine))
        for key in (lerobot.ACTION, lerobot.EXECUTED, lerobot.STATE, *self._found.vectors.values()):
            if key not in rows.column_names or not _is_list(rows[key].type):
                continue
            lengths = sorted(pc.list_value_length(rows[key]).fill_null(0).unique().to_pylist())
            if len(lengths) > 1:
                raise UserError(
                    f"{place.name} has rows of {lengths[0]} to {lengths[-1]} values in {key}; leave it out"
                )
        return rows

    def _read_places(self) -> list[Place]:
        """Return the place of every episode, in their order. Raises `UserError` if one lies outside."""
        try:
            rows = self._rows_v3() if self._is_v3 else self._rows_v2()
            places = [self._place(row) for row in sorted(rows, key=lambda r: r["episode_index"])]
        except (*DAMAGE, TypeError, AttributeError) as error:
            raise self._damaged("episodes", error) from error
        if not self._options.choices.allow_external:
            videos = (file for place in places for file, _ in place.videos.values())
            require_inside({*(place.data for place in places), *videos}, self._root)
        return places

    def _damaged(self, what: str, error: Exception) -> UserError:
        return UserError(
            f"{self._root}: the list of its {what} is damaged ({error}); fetch the data set again"
        )

    def _rows_v3(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for file in sorted((self._root / "meta/episodes").glob("*/*.parquet")):
            names = [n for n in pq.read_schema(file).names if not n.startswith(("stats/", "tasks"))]
            rows += pq.read_table(file, columns=names).to_pylist()
        return rows

    def _rows_v2(self) -> list[dict[str, Any]]:
        return list(read_lines(self._root / "meta/episodes.jsonl"))

    def _place(self, row: Mapping[str, Any]) -> Place:
        features, index = self._info["features"], row["episode_index"]

        def file(pattern: str, kind: str, **names: str) -> Path:
            if self._is_v3:
                parts = ("chunk_index", "file_index")
                numbers = {part: int(row[f"{kind}/{part}"]) for part in parts}
            else:
                chunk = index // self._info["chunks_size"]
                numbers = {"episode_chunk": chunk, "episode_index": index}
            return self._root / _filled(self._info[pattern], {**numbers, **names})

        videos = {}
        for key in (key for key, feature in features.items() if feature["dtype"] == "video"):
            start_s = float(row[f"videos/{key}/from_timestamp"]) if self._is_v3 else 0.0
            videos[key] = file("video_path", f"videos/{key}", video_key=key), start_s
        return Place(index, row["length"], file("data_path", "data"), videos)

    def _read_tasks(self) -> dict[int, str]:
        """Return task index -> instruction."""
        try:
            if self._is_v3:
                table = pq.read_table(self._root / "meta/tasks.parquet")
                text = next(name for name in table.column_names if name != "task_index")
                columns = (table["task_index"].to_pylist(), table[text].to_pylist())
                tasks = dict(zip(*columns, strict=True))
            else:
                lines = read_lines(self._root / "meta/tasks.jsonl")
                tasks = {row["task_index"]: row["task"] for row in lines}
            for task in tasks.values():
                if not isinstance(task, str):
                    raise ValueError(f"the task {task!r} is no text")
            return {index: plain_text(task, "a task") for index, task in tasks.items()}
        except (*DAMAGE, StopIteration) as error:
            raise self._damaged("tasks", error) from error


def _read_info(root: Path) -> dict[str, Any]:
    """Return `meta/info.json`. Raises `UserError` if it is damaged or of a version that is not read."""
    try:
        info = json.loads((root / lerobot.INFO).read_text())
        version, _ = info["codebase_version"], info["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{root / lerobot.INFO} is damaged ({error}); fetch the data set again"
        ) from error
    if version not in VERSIONS:
        what = f"{root} is a LeRobot data set of version {version}, which is not read"
        raise UserError(f"{what}; convert it to {VERSIONS[-1]} by LeRobot's own script first")
    return dict(info)


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}); fetch the data set again") from error


def _capture_times(rows: pa.Table, rate_hz: float) -> npt.NDArray[np.float64] | None:
    """Return when the observations were captured; None if the stamps were only counted up."""
    if lerobot.CAPTURE_TIME in rows.column_names:
        times = _values(rows, lerobot.CAPTURE_TIME).astype(np.float64)
        return None if np.isnan(times).all() else times
    times = _values(rows, "timestamp").astype(np.float64)
    counted = np.arange(len(times)) / rate_hz
    return None if np.allclose(times - times[0], counted, atol=1e-3) else times


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _matrix(rows: pa.Table, key: str) -> npt.NDArray[Any]:
    """Return a column of vectors as (T, K); those of one value are stored as plain numbers."""
    return _values(rows, key).reshape(len(rows), -1)


def _values(rows: pa.Table, key: str) -> npt.NDArray[Any]:
    """Return a column as (T,) or (T, K)."""
    column = rows[key].combine_chunks()
    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values.reshape(len(column), -1) if len(column) else values.reshape(0, 0))


def _masks(info: Mapping[str, Any], count: int) -> list[tuple[str, ...]]:
    """Return the masks of each episode from `splits`, such as {"train": "0:80", "val": "80:100"}."""
    names: list[tuple[str, ...]] = [()] * count
    for name, span in (info.get("splits") or {}).items():
        start, _, stop = str(span).partition(":")
        for index in range(int(start or 0), min(int(stop or count), count)):
            names[index] += ("valid" if name in ("val", "validation") else name,)
    # LeRobot writes of every data set that all of it is "train", which holds nothing out.
    return [()] * count if set(names) == {("train",)} else names


def _observed(features: Mapping[str, Any], where: str) -> Observed:
    """Sort the features of a data set. Raises `UserError` if there is no action vector."""
    if lerobot.ACTION not in features or len(features[lerobot.ACTION]["shape"]) != 1:
        raise UserError(f"{where} has no feature '{lerobot.ACTION}' of one dimension to learn from")
    found = Observed({}, {}, {}, {}, set(), [])
    for key, feature in features.items():
        name = key.removeprefix(lerobot.IMAGES).removeprefix(lerobot.OBSERVATION)
        if reason := _reason_to_skip(key, feature):
            found.skipped.append(f"{key} ({reason})")
        elif feature["dtype"] in ("video", "image"):
            found.cameras[name], found.images[name] = _camera(name, feature), key
            if feature["dtype"] == "video":
                found.videos.add(name)
        elif key.startswith(lerobot.OBSERVATION):
            found.labels[name], found.vectors[name] = _labels(name, feature), key
    return found


def _reason_to_skip(key: str, feature: Mapping[str, Any]) -> str:
    if key in READ:
        return ""
    shape = feature["shape"]
    if feature["dtype"] in ("video", "image"):
        info = feature.get("info") or feature.get("video_info") or {}
        if info.get("video.is_depth_map") or "depth" in key:
            return "depth"
        return "" if len(shape) == 3 and 3 in (shape[0], shape[2]) else "not three channels"
    if not key.startswith(lerobot.OBSERVATION):
        return "no observation"
    if key == lerobot.SIMULATOR_STATE:
        return "the simulator's state"
    return "" if len(shape) == 1 and feature["dtype"].startswith("float") else "not a float vector"


def _camera(name: str, feature: Mapping[str, Any]) -> CameraSpec:
    shape, names = feature["shape"], feature.get("names") or []
    first = bool(names) and str(names[0]).startswith("channel")
    height, width = shape[1:] if first or shape[2] != 3 else shape[:2]
    return CameraSpec(name, int(height), int(width))


def _labels(name: str, feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a vector's values, which LeRobot has as a list or as {"motors": list}."""
    size, names = int(feature["shape"][0]), feature.get("names") or []
    if isinstance(names, dict) and len(names) == 1:
        names = next(iter(names.values()))
    whole = isinstance(names, list) and {type(each) for each in names} == {str}
    return tuple(names) if whole and len(names) == size else index_labels(name, size)


def _filled(pattern: str, values: Mapping[str, int | str]) -> str:
    """Return a path's pattern filled in. Raises `ValueError` for fields that LeRobot has not."""
    for _, name, width, conversion in Formatter().parse(pattern):
        if name is not None and (
            name not in values or conversion or not re.fullmatch(r"(0?\d?d)?", width or "")
        ):
            raise ValueError(f"the path {pattern!r} has the field {name!r}")
    return pattern.format(**values)
