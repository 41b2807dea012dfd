"""The features of a LeRobot data set (`meta/info.json`), and what they are to a `PolicySpec`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ttm.datasets.episode_file import plain_text
from ttm.datasets.formats.recording import index_labels, read_lines
from ttm.datasets.frames import Frames
from ttm.datasets.hdf5 import require_inside
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

ACTION = "action"
STATE = "observation.state"
IMAGES = "observation.images."
OBSERVATION = "observation."
SIMULATOR_STATE = "observation.environment_state"

CAPTURE_TIME, EXECUTED, WEIGHT = "capture_time_s", "executed_action", "loss_weight"
"""Features that only our files have. LeRobot's policies take no feature of such a name as input."""

REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"

INDICES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""The features that every LeRobot data set has, with their types."""


@dataclass(frozen=True)
class Camera:
    """One camera: its feature, its frames' size, and whether they are a video or images."""

    key: str
    height: int
    width: int
    is_video: bool


@dataclass(frozen=True)
class Observed:
    """What of a data set's features is read."""

    cameras: Mapping[str, Camera]
    """Our name -> camera."""
    vectors: Mapping[str, str]
    """Our name -> feature."""
    labels: Mapping[str, tuple[str, ...]]
    """Our name -> a label for each value."""
    skipped: tuple[str, ...]
    """Features that are not read, each with the reason."""


def observed(features: Mapping[str, Any], where: str) -> Observed:
    """Sort the features of a data set. Raises `UserError` if there is no action vector."""
    if ACTION not in features or len(features[ACTION]["shape"]) != 1:
        raise UserError(
            f"{where} has no feature '{ACTION}' of one dimension; nothing can be learned"
        )
    cameras: dict[str, Camera] = {}
    vectors: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}
    skipped: list[str] = []
    for key, feature in features.items():
        name = key.removeprefix(IMAGES).removeprefix(OBSERVATION)
        if reason := _reason_to_skip(key, feature):
            skipped.append(f"{key} ({reason})")
        elif feature["dtype"] in ("video", "image"):
            cameras[name] = _camera(key, feature)
        elif key.startswith(OBSERVATION):
            vectors[name] = key
            labels[name] = _labels(name, feature)
    return Observed(cameras, vectors, labels, tuple(skipped))


def features_of(
    spec: PolicySpec, *, codec: str | None, extras: Mapping[str, int]
) -> dict[str, Any]:
    """Return the features of a data set of `spec`.

    codec: the codec of the cameras' videos, or None for images in the data files.
    extras: further features of float numbers with their sizes.
    """
    features: dict[str, Any] = {}
    for camera in spec.cameras:
        feature: dict[str, Any] = {
            "dtype": "image" if codec is None else "video",
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
        }
        if codec is not None:
            feature["info"] = _video_info(camera.height, camera.width, codec, spec.rate_hz)
        features[IMAGES + camera.name] = feature
    if spec.proprioception:
        names = [label for vector in spec.proprioception for label in vector.labels]
        features[STATE] = _numbers("float32", len(names), names)
    features[ACTION] = _numbers("float32", spec.action_size, _action_names(spec))
    features |= {key: _numbers(TYPES.get(key, "float32"), size) for key, size in extras.items()}
    return features | {key: _numbers(dtype, 1) for key, dtype in INDICES.items()}


TYPES = {CAPTURE_TIME: "float64", DONE: "bool", SUCCESS: "bool"}
"""The types of extra features; float32 for all others."""


def _reason_to_skip(key: str, feature: Mapping[str, Any]) -> str:
    if key in (ACTION, REWARD, DONE, SUCCESS, CAPTURE_TIME, EXECUTED, WEIGHT, *INDICES):
        return ""
    shape = feature["shape"]
    if feature["dtype"] in ("video", "image"):
        info = feature.get("info") or feature.get("video_info") or {}
        if info.get("video.is_depth_map") or "depth" in key:
            return "depth"
        return "" if len(shape) == 3 and 3 in (shape[0], shape[2]) else "not three channels"
    if not key.startswith(OBSERVATION):
        return "no observation"
    if key == SIMULATOR_STATE:
        return "the simulator's state"
    return "" if len(shape) == 1 and feature["dtype"].startswith("float") else "not a float vector"


def _camera(key: str, feature: Mapping[str, Any]) -> Camera:
    shape = feature["shape"]
    names = feature.get("names") or []
    first = bool(names) and str(names[0]).startswith("channel")
    height, width = shape[1:] if first or shape[2] != 3 else shape[:2]
    return Camera(key, int(height), int(width), feature["dtype"] == "video")


def _labels(name: str, feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a vector's values, which LeRobot has as a list or as {"motors": list}."""
    size, names = int(feature["shape"][0]), feature.get("names")
    if isinstance(names, dict) and len(names) == 1:
        names = next(iter(names.values()))
    whole = (
        isinstance(names, list) and len(names) == size and all(isinstance(n, str) for n in names)
    )
    return tuple(names) if whole and names else index_labels(name, size)


def _action_names(spec: PolicySpec) -> list[str]:
    return [
        part.name if part.size == 1 else f"{part.name}_{i}"
        for part in spec.actions
        for i in range(part.size)
    ]


def _numbers(dtype: str, size: int, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size], "names": names}


def _video_info(height: int, width: int, codec: str, rate_hz: float) -> dict[str, Any]:
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": codec,
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": rate(rate_hz),
        "video.channels": 3,
        "has_audio": False,
    }


def rate(rate_hz: float) -> int | float:
    """Return a rate as LeRobot writes it: an integer where it is one."""
    return int(rate_hz) if rate_hz == int(rate_hz) else rate_hz


# Where each episode of a LeRobot data set lies, in version 2.1 and in version 3.0.

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


# The statistics that LeRobot stores with its data sets, and normalises its policies' inputs with.
#
# Quantiles of a whole data set are the means of its episodes' quantiles, weighted by their numbers of
# frames, as LeRobot aggregates them; its other statistics are exact.

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Statistics = dict[str, npt.NDArray[Any]]

MOST_SIDE = 64
"""Statistics of images are taken from at most this many rows and columns of pixels."""


def of_numbers(values: npt.NDArray[Any]) -> Statistics:
    """Return the statistics of values (T,) or (T, K) over T, each (1,) or (K,)."""
    wide = values.astype(np.float64).reshape(len(values), -1)
    found = {
        "min": wide.min(axis=0),
        "max": wide.max(axis=0),
        "mean": wide.mean(axis=0),
        "std": wide.std(axis=0),
        "count": np.array([len(wide)]),
    }
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return found | dict(zip(QUANTILES, quantiles, strict=True))


class FrameStatistics:
    """Takes the statistics of a camera's frames as they pass by."""

    def __init__(self) -> None:
        self._histograms = np.zeros((3, 256), np.int64)
        self._count = 0

    def watch(self, frames: Iterable[Frames]) -> Iterator[Frames]:
        """Yield the frames on, and count the values of a grid of their pixels."""
        for frame in frames:
            steps = [max(side // MOST_SIDE, 1) for side in frame.shape[:2]]
            pixels = frame[:: steps[0], :: steps[1]].reshape(-1, 3)
            for channel in range(3):
                self._histograms[channel] += np.bincount(pixels[:, channel], minlength=256)
            self._count += 1
            yield frame

    def result(self) -> Statistics:
        """Return the statistics of each channel, (3, 1, 1), of values in [0, 1]."""
        levels = np.arange(256) / 255
        weights = self._histograms / self._histograms.sum(axis=1, keepdims=True)  # (3, 256)
        cumulative = weights.cumsum(axis=1)
        mean = weights @ levels
        present = self._histograms > 0
        found = {
            "min": levels[present.argmax(axis=1)],
            "max": levels[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(weights @ levels**2 - mean**2, 0)),
        }
        found |= {
            name: levels[(cumulative >= portion - 1e-12).argmax(axis=1)]
            for name, portion in QUANTILES.items()
        }
        shaped = {name: values.reshape(3, 1, 1) for name, values in found.items()}
        return shaped | {"count": np.array([self._count])}


class TotalStatistics:
    """Adds up the statistics of episodes to those of the whole data set."""

    def __init__(self) -> None:
        self.totals: dict[str, Statistics] = {}

    def add(self, episode: Mapping[str, Statistics]) -> None:
        """Add the statistics of one episode: feature -> statistics."""
        for feature, new in episode.items():
            old = self.totals.get(feature)
            self.totals[feature] = dict(new) if old is None else _combined(old, new)


def as_lists(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return statistics as nested lists, which JSON and Arrow take."""
    return {
        feature: {name: values.tolist() for name, values in found.items()}
        for feature, found in statistics.items()
    }


def _combined(old: Statistics, new: Statistics) -> Statistics:
    count = old["count"] + new["count"]
    ours, theirs = old["count"] / count, new["count"] / count
    mean = ours * old["mean"] + theirs * new["mean"]
    spread = (
        old["std"] ** 2 + (old["mean"] - mean) ** 2,
        new["std"] ** 2 + (new["mean"] - mean) ** 2,
    )
    found = {
        "min": np.minimum(old["min"], new["min"]),
        "max": np.maximum(old["max"], new["max"]),
        "mean": mean,
        "std": np.sqrt(ours * spread[0] + theirs * spread[1]),
        "count": count,
    }
    return found | {name: ours * old[name] + theirs * new[name] for name in QUANTILES}
