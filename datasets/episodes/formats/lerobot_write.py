"""Writes LeRobot data sets of version 2.1 and 3.0.

The vectors of an observation become one, `observation.state`, as LeRobot's policies take it. The
cameras become videos, which is lossy, or on request PNGs in the data files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ttm.datasets.formats import lerobot
from ttm.datasets.formats.recording import EPISODES as FACTS
from ttm.datasets.formats.recording import Recording, Source, facts_line, write_spec
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames

Array = npt.NDArray[Any]
Statistics = dict[str, Array]

TYPES = {lerobot.CAPTURE_TIME: "float64", lerobot.DONE: "bool", lerobot.SUCCESS: "bool"}
"""The types of extra features; float32 for all others."""
CHUNK = 1000  # episodes, or files, in a folder


def write_v21(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`: one data file and one video a camera for each."""
    _write(source, FilesV21(target, options.video_codec, source.spec.rate_hz))


def write_v30(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`: files that hold many of them, up to a size."""
    _write(source, FilesV30(target, options.video_codec, source.spec.rate_hz))


def _write(source: Source, files: Files) -> None:
    features, meta = _features(source, files.codec), files.root / "meta"
    meta.mkdir(parents=True)
    tasks: dict[str, int] = {}
    totals: dict[str, Statistics] = {}
    num_frames = num_episodes = 0
    with (meta / FACTS).open("w", encoding="utf-8") as facts:
        for index, recording in enumerate(source.recordings()):
            length = len(recording.actions)
            task = tasks.setdefault(recording.instruction, len(tasks))
            values = _columns(recording, source.spec.rate_hz) | {
                "episode_index": np.full(length, index),
                "index": np.arange(length) + num_frames,
                "task_index": np.full(length, task),
            }
            columns = {
                key: np.asarray(values[key]).astype(feature["dtype"])
                for key, feature in features.items()
                if key in values
            }
            statistics = {key: of_numbers(values) for key, values in columns.items()}
            images: dict[str, list[bytes]] = {}
            for camera in recording.cameras:
                key, histograms = lerobot.IMAGES + camera, np.zeros((3, 256), np.int64)
                frames = _counted(recording.each_frame(camera), histograms)
                if files.codec is None:
                    images[key] = [_png(frame) for frame in frames]
                else:
                    for frame in frames:
                        files.write_frame(key, frame)
                statistics[key] = of_histograms(histograms, length)
            rows = _table(columns, images, features)
            files.append(index, recording.instruction, rows, statistics)
            for key, found in statistics.items():
                totals[key] = combined(totals[key], found) if key in totals else found
            facts.write(facts_line(index, recording))
            num_frames, num_episodes = num_frames + length, index + 1
    info = {
        "robot_type": source.spec.robot,
        "total_episodes": num_episodes,
        "total_frames": num_frames,
        "total_tasks": len(tasks),
        "chunks_size": CHUNK,
        "fps": _rate(source.spec.rate_hz),
        "splits": {"train": f"0:{num_episodes}"},
        **files.close(list(tasks)),
        "features": features,
    }
    for name, data in (("info.json", info), ("stats.json", as_lists(totals))):
        text = json.dumps(data, indent=4, ensure_ascii=False)
        (meta / name).write_text(text, encoding="utf-8")
    if source.has_own_spec:
        write_spec(meta, source.spec)


def _features(source: Source, codec: str | None) -> dict[str, Any]:
    """Return the features of a data set. codec: that of the videos; None for images in the data files."""
    spec = source.spec
    features: dict[str, Any] = {}
    for camera in spec.cameras:
        feature = features[lerobot.IMAGES + camera.name] = {
            "dtype": "image" if codec is None else "video",
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
        }
        if codec is not None:
            feature["info"] = {
                "video.height": camera.height,
                "video.width": camera.width,
                "video.codec": codec,
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": _rate(spec.rate_hz),
                "video.channels": 3,
                "has_audio": False,
            }
    if spec.proprioception:
        names = [label for vector in spec.proprioception for label in vector.labels]
        features[lerobot.STATE] = _numbers("float32", len(names), names)
    actions = [
        part.name if part.size == 1 else f"{part.name}_{i}"
        for part in spec.actions
        for i in range(part.size)
    ]
    features[lerobot.ACTION] = _numbers("float32", spec.action_size, actions)
    # Beside observations and actions, what any episode has
    extras, judged = {lerobot.REWARD: 1, lerobot.DONE: 1}, True
    for recording in source.recordings():
        judged = judged and recording.success is not None
        extras |= {lerobot.CAPTURE_TIME: 1} if recording.timestamps is not None else {}
        extras |= {lerobot.WEIGHT: 1} if recording.loss_weights is not None else {}
        if recording.executed_actions is not None:
            extras[lerobot.EXECUTED] = spec.action_size
    extras |= {lerobot.SUCCESS: 1} if judged else {}
    features |= {key: _numbers(TYPES.get(key, "float32"), size) for key, size in extras.items()}
    return features | {key: _numbers(dtype, 1) for key, dtype in lerobot.INDICES.items()}


def _numbers(dtype: str, size: int, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size], "names": names}


def _rate(rate_hz: float) -> int | float:
    """Return a rate as LeRobot writes it: an integer where it is one."""
    return int(rate_hz) if rate_hz == int(rate_hz) else rate_hz


def _columns(recording: Recording, rate_hz: float) -> dict[str, Any]:
    """Return what an episode has for each feature but its frames and its place, (T,) or (T, K)."""
    ticks = np.arange(len(recording.actions))
    columns: dict[str, Any] = {
        lerobot.ACTION: recording.actions,
        lerobot.REWARD: recording.filled("rewards"),
        lerobot.DONE: recording.filled("dones"),
        lerobot.SUCCESS: (ticks == ticks[-1]) & bool(recording.success),
        lerobot.CAPTURE_TIME: recording.filled("timestamps"),
        lerobot.EXECUTED: recording.filled("executed_actions"),
        lerobot.WEIGHT: recording.filled("loss_weights"),
        "timestamp": ticks / rate_hz,
        "frame_index": ticks,
    }
    if recording.vectors:
        columns[lerobot.STATE] = np.concatenate(list(recording.vectors.values()), axis=1)
    return columns


def _table(
    columns: Mapping[str, Array], images: Mapping[str, list[bytes]], features: Mapping[str, Any]
) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    kinds: dict[str, Any] = {}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for key, feature in features.items():
        if key in images:
            pairs = enumerate(images[key])
            rows = [{"bytes": data, "path": f"frame-{tick:06d}.png"} for tick, data in pairs]
            arrays[key], kinds[key] = pa.array(rows, image), {"_type": "Image"}
        elif key in columns:
            size, value = feature["shape"][0], {"dtype": feature["dtype"], "_type": "Value"}
            arrays[key], kinds[key] = pa.array(columns[key].reshape(-1)), value
            if size != 1:
                arrays[key] = pa.FixedSizeListArray.from_arrays(arrays[key], size)
                kinds[key] = {"feature": value, "length": size, "_type": "Sequence"}
    described = json.dumps({"info": {"features": kinds}})
    return pa.table(arrays).replace_schema_metadata({"huggingface": described})


def _png(frame: Frames) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


class Files:
    """The files of one version of the format, whose paths have the patterns `data_path` and `video_path`."""

    data_path: str
    video_path: str

    def __init__(self, root: Path, codec: str | None, rate_hz: float) -> None:
        """codec: that of the videos, AV1 by default; "none" for no videos."""
        self.root = root
        self.codec = None if codec == "none" else codec or "av1"
        self._rate_hz = rate_hz
        self._videos: dict[str, lerobot.VideoWriter] = {}  # those that are being written, by camera

    def write_frame(self, key: str, frame: Frames) -> None:
        """Add a frame of the episode in progress to the video of a camera."""
        if key not in self._videos:
            assert self.codec is not None
            path = self.root / self.video_path.format(video_key=key, **self._next_video(key))
            self._videos[key] = lerobot.VideoWriter(path, self.codec, self._rate_hz)
        self._videos[key].append(frame)

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        """Complete the episode in progress, whose frames were written."""
        raise NotImplementedError

    def close(self, tasks: list[str]) -> dict[str, Any]:
        """Write what is left; return what `info.json` says of this version."""
        return {"data_path": self.data_path, "video_path": self.video_path if self.codec else None}

    def _next_video(self, key: str) -> dict[str, int]:
        """Return the numbers of the next video of a camera, as `video_path` names them."""
        raise NotImplementedError


class FilesV21(Files):
    """Version 2.1."""

    data_path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    video_path = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    _index = _num_videos = 0

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        path = self.root / self.data_path.format(**self._next_video())
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        for video in self._videos.values():
            video.close()
        self._num_videos += len(self._videos)
        self._videos = {}
        self._index = index + 1
        own = {"episode_index": index}
        self._write_line("episodes", own | {"tasks": [instruction], "length": len(rows)})
        self._write_line("episodes_stats", own | {"stats": as_lists(statistics)})

    def close(self, tasks: list[str]) -> dict[str, Any]:
        for index, task in enumerate(tasks):
            self._write_line("tasks", {"task_index": index, "task": task})
        return {
            "codebase_version": "v2.1",
            "total_chunks": -(-self._index // CHUNK),
            "total_videos": self._num_videos,
            **super().close(tasks),
        }

    def _next_video(self, key: str = "") -> dict[str, int]:
        return {"episode_chunk": self._index // CHUNK, "episode_index": self._index}

    def _write_line(self, name: str, data: Mapping[str, Any]) -> None:
        with (self.root / f"meta/{name}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(data, ensure_ascii=False) + "\n")


DATA_MB, VIDEO_MB = 100, 200  # a file of version 3.0 of this size gets no further episode
NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
ROWS = 100  # episodes' descriptions that are in memory at a time


class FilesV30(Files):
    """Version 3.0."""

    data_path = f"data/{NUMBERED}.parquet"
    video_path = f"videos/{{video_key}}/{NUMBERED}.mp4"

    def __init__(self, root: Path, codec: str | None, rate_hz: float) -> None:
        super().__init__(root, codec, rate_hz)
        self._data = TableFiles(root, self.data_path)
        self._episodes = TableFiles(root, f"meta/episodes/{NUMBERED}.parquet")
        self._rows: list[dict[str, Any]] = []
        self._video_numbers: dict[str, int] = {}
        self._num_frames = 0

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        length, first = len(rows), self._num_frames
        row: dict[str, Any] = {"episode_index": index, "tasks": [instruction], "length": length}
        row |= _prefixed("data", _numbered(self._data.number))
        row |= {"dataset_from_index": first, "dataset_to_index": first + length}
        self._data.write(rows)
        for key, video in list(self._videos.items()):
            row |= _prefixed(f"videos/{key}", _numbered(self._video_numbers[key]))
            row[f"videos/{key}/from_timestamp"] = video.time_of(video.num_frames - length)
            row[f"videos/{key}/to_timestamp"] = video.time_of(video.num_frames)
            if video.size >= VIDEO_MB * 2**20:
                self._videos.pop(key).close()
        for key, numbers in as_lists(statistics).items():
            row |= _prefixed(f"stats/{key}", numbers)
        self._num_frames += length
        self._rows.append(row | _prefixed("meta/episodes", _numbered(self._episodes.number)))
        if len(self._rows) == ROWS:
            self._flush()

    def close(self, tasks: list[str]) -> dict[str, Any]:
        for video in self._videos.values():
            video.close()
        self._flush()
        self._data.close()
        self._episodes.close()
        pq.write_table(_task_table(tasks), self.root / "meta/tasks.parquet")
        return {
            "codebase_version": "v3.0",
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            **super().close(tasks),
        }

    def _next_video(self, key: str) -> dict[str, int]:
        self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
        return _numbered(self._video_numbers[key])

    def _flush(self) -> None:
        if self._rows:
            self._episodes.write(pa.Table.from_pylist(self._rows))
        self._rows = []


class TableFiles:
    """A table in numbered Parquet files; a file that has its full size gets no further rows."""

    def __init__(self, root: Path, pattern: str) -> None:
        self.number = 0
        self._root, self._pattern = root, pattern
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Add rows to the file `number`, and go on to the next one if it is full."""
        path = self._root / self._pattern.format(**_numbered(self.number))
        if self._writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, rows.schema)
        self._writer.write_table(rows)
        if path.stat().st_size >= DATA_MB * 2**20:
            self.close()
            self.number += 1

    def close(self) -> None:
        """Complete the file in progress, if there is one."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _numbered(number: int) -> dict[str, int]:
    return {"chunk_index": number // CHUNK, "file_index": number % CHUNK}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _task_table(tasks: list[str]) -> pa.Table:
    """Return the table of tasks, whose text pandas takes as its index, as LeRobot expects."""
    text = "__index_level_0__"
    number = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    words = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    columns = [
        {"name": "task_index", "field_name": "task_index", **number},
        {"name": None, "field_name": text, **words},
    ]
    described = {"index_columns": [text], "column_indexes": [], "columns": columns}
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), text: tasks})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MOST_SIDE = 64  # statistics of images are taken from at most this many rows and columns of pixels


def of_numbers(values: npt.NDArray[Any]) -> Statistics:
    """Return LeRobot's statistics of values (T,) or (T, K) over T, each (1,) or (K,)."""
    wide = values.astype(np.float64).reshape(len(values), -1)
    found = {name: getattr(wide, name)(axis=0) for name in ("min", "max", "mean", "std")}
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return found | {"count": np.array([len(wide)])} | dict(zip(QUANTILES, quantiles, strict=True))


def _counted(frames: Iterable[Frames], histograms: Array) -> Iterator[Frames]:
    """Yield the frames on, and count the values of a grid of their pixels in `histograms`, (3, 256)."""
    for frame in frames:
        steps = [max(side // MOST_SIDE, 1) for side in frame.shape[:2]]
        pixels = frame[:: steps[0], :: steps[1]].reshape(-1, 3)
        for channel in range(3):
            histograms[channel] += np.bincount(pixels[:, channel], minlength=256)
        yield frame


def of_histograms(histograms: Array, num_frames: int) -> Statistics:
    """Return the statistics of each channel, (3, 1, 1), of values in [0, 1]."""
    levels = np.arange(256) / 255
    weights = histograms / histograms.sum(axis=1, keepdims=True)  # (3, 256)
    cumulative = weights.cumsum(axis=1)
    mean = weights @ levels
    present = histograms > 0
    found = {
        "min": levels[present.argmax(axis=1)],
        "max": levels[255 - present[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(np.maximum(weights @ levels**2 - mean**2, 0)),
    }
    for name, portion in QUANTILES.items():
        found[name] = levels[(cumulative >= portion - 1e-12).argmax(axis=1)]
    shaped = {name: values.reshape(3, 1, 1) for name, values in found.items()}
    return shaped | {"count": np.array([num_frames])}


def as_lists(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return statistics as nested lists, which JSON and Arrow take."""
    pairs = statistics.items()
    return {key: {name: each.tolist() for name, each in found.items()} for key, found in pairs}


def combined(old: Statistics, new: Statistics) -> Statistics:
    """Return the statistics of two parts together; quantiles are weighted means, as LeRobot has them."""
    count = old["count"] + new["count"]
    ours, theirs = old["count"] / count, new["count"] / count
    found = {name: ours * old[name] + theirs * new[name] for name in ("mean", *QUANTILES)}
    spread = [part["std"] ** 2 + (part["mean"] - found["mean"]) ** 2 for part in (old, new)]
    return {
        "min": np.minimum(old["min"], new["min"]),
        "max": np.maximum(old["max"], new["max"]),
        "mean": found.pop("mean"),
        "std": np.sqrt(ours * spread[0] + theirs * spread[1]),
        "count": count,
        **found,
    }
