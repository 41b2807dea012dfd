"""Writes LeRobot data sets. `v30.py` and `v21.py` know the files of the two versions.

The vectors of an observation become one, `observation.state`, as LeRobot's policies take it. The
cameras become videos, which is lossy, or on request PNGs in the data files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ttm.datasets.formats.lerobot import (
    ACTION,
    CAPTURE_TIME,
    DONE,
    EXECUTED,
    IMAGES,
    INFO,
    REWARD,
    STATE,
    SUCCESS,
    WEIGHT,
    FrameStatistics,
    Statistics,
    TotalStatistics,
    as_lists,
    features_of,
    of_numbers,
    rate,
)
from ttm.datasets.formats.lerobot_video import VideoWriter
from ttm.datasets.formats.recording import EPISODES as EPISODES_recording
from ttm.datasets.formats.recording import Recording, Source, facts_line, write_spec
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames

Columns = dict[str, npt.NDArray[Any]]


class Files(Protocol):
    """The files of one version of the format."""

    def write_frame(self, key: str, frame: Frames) -> None:
        """Add a frame of the episode in progress to the video of a camera."""

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        """Complete the episode in progress, whose frames were written."""

    def close(self, tasks: list[str]) -> dict[str, Any]:
        """Write what is left; return what `info.json` says of this version."""


MakeFiles = Callable[[Path, str | None, float], Files]
"""(folder, codec or None for no videos, rate in Hz) -> files."""


def write_data_set(
    source: Source, target: Path, options: ConvertOptions, make_files: MakeFiles
) -> None:
    """Write all episodes and the descriptions of the data set to the folder `target`."""
    codec = None if options.video_codec == "none" else options.video_codec or "av1"
    features = features_of(source.spec, codec=codec, extras=_extras(source))
    (target / "meta").mkdir(parents=True)
    files = make_files(target, codec, source.spec.rate_hz)
    tasks: dict[str, int] = {}
    total = TotalStatistics()
    num_frames = num_episodes = 0
    with (target / "meta" / EPISODES_recording).open("w", encoding="utf-8") as facts:
        for index, recording in enumerate(source.recordings()):
            task = tasks.setdefault(recording.instruction, len(tasks))
            columns = _columns(recording, features, source.spec.rate_hz, index, num_frames, task)
            statistics = {key: of_numbers(values) for key, values in columns.items()}
            images = _write_frames(recording, files, statistics, as_video=codec is not None)
            rows = _table(columns, images, features)
            files.append(index, recording.instruction, rows, statistics)
            total.add(statistics)
            facts.write(facts_line(index, recording))
            num_frames, num_episodes = num_frames + len(rows), index + 1
    info = {
        "robot_type": source.spec.robot,
        "total_episodes": num_episodes,
        "total_frames": num_frames,
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "fps": rate(source.spec.rate_hz),
        "splits": {"train": f"0:{num_episodes}"},
        **files.close(list(tasks)),
        "features": features,
    }
    _write_json(target / INFO, info)
    _write_json(target / "meta/stats.json", as_lists(total.totals))
    if source.has_own_spec:
        write_spec(target / "meta", source.spec)


def _extras(source: Source) -> dict[str, int]:
    """Return the features beside observations and actions that any episode has, with their sizes."""
    found = {REWARD: 1, DONE: 1}
    judged = True
    for recording in source.recordings():
        judged = judged and recording.success is not None
        found |= {CAPTURE_TIME: 1} if recording.timestamps is not None else {}
        found |= {WEIGHT: 1} if recording.loss_weights is not None else {}
        if recording.executed_actions is not None:
            found[EXECUTED] = source.spec.action_size
    return found | ({SUCCESS: 1} if judged else {})


def _columns(
    recording: Recording,
    features: Mapping[str, Any],
    rate_hz: float,
    index: int,
    first: int,
    task: int,
) -> Columns:
    """Return the columns of an episode but its frames, (T,) or (T, K), in their final types."""
    count = len(recording.actions)
    ticks = np.arange(count)
    last = ticks == count - 1
    values: dict[str, Any] = {
        STATE: np.concatenate(list(recording.vectors.values()), axis=1)
        if recording.vectors
        else None,
        ACTION: recording.actions,
        REWARD: np.zeros(count) if recording.rewards is None else recording.rewards,
        DONE: last if recording.dones is None else recording.dones,
        SUCCESS: last & bool(recording.success),
        CAPTURE_TIME: np.full(count, np.nan)
        if recording.timestamps is None
        else recording.timestamps,
        EXECUTED: recording.actions
        if recording.executed_actions is None
        else recording.executed_actions,
        WEIGHT: np.ones(count) if recording.loss_weights is None else recording.loss_weights,
        "timestamp": ticks / rate_hz,
        "frame_index": ticks,
        "episode_index": np.full(count, index),
        "index": ticks + first,
        "task_index": np.full(count, task),
    }
    return {
        key: np.asarray(values[key]).astype(feature["dtype"])
        for key, feature in features.items()
        if key in values
    }


def _write_frames(
    recording: Recording, files: Files, statistics: dict[str, Statistics], *, as_video: bool
) -> dict[str, list[bytes]]:
    """Write the frames to the videos, or return them as PNGs; add their statistics."""
    images: dict[str, list[bytes]] = {}
    for camera in recording.cameras:
        key, watcher = IMAGES + camera, FrameStatistics()
        frames = watcher.watch(recording.each_frame(camera))
        if as_video:
            for frame in frames:
                files.write_frame(key, frame)
        else:
            images[key] = [_png(frame) for frame in frames]
        statistics[key] = watcher.result()
    return images


def _table(
    columns: Columns, images: Mapping[str, list[bytes]], features: Mapping[str, Any]
) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    kinds: dict[str, Any] = {}
    for key, feature in features.items():
        if key in images:
            rows = [
                {"bytes": data, "path": f"frame-{tick:06d}.png"}
                for tick, data in enumerate(images[key])
            ]
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            arrays[key], kinds[key] = pa.array(rows, kind), {"_type": "Image"}
        elif key in columns:
            size, value = feature["shape"][0], {"dtype": feature["dtype"], "_type": "Value"}
            flat = pa.array(columns[key].reshape(-1))
            single = size == 1
            arrays[key] = flat if single else pa.FixedSizeListArray.from_arrays(flat, size)
            sequence = {"feature": value, "length": size, "_type": "Sequence"}
            kinds[key] = value if single else sequence
    described = json.dumps({"info": {"features": kinds}})
    return pa.table(arrays).replace_schema_metadata({"huggingface": described})


def _png(frame: Frames) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=4, ensure_ascii=False), encoding="utf-8")


# LeRobot's version 2.1: one data file and one video a camera for each episode.

CHUNK = 1000
"""Episodes in a folder."""
DATA_V21 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_V21 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def write_v21(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`."""
    write_data_set(source, target, options, FilesV21)


class FilesV21:
    """The files of version 2.1; see `Files`."""

    def __init__(self, root: Path, codec: str | None, rate_hz: float) -> None:
        self._root, self._codec, self._rate_hz = root, codec, rate_hz
        self._videos: dict[str, VideoWriter] = {}
        self._index = self._num_videos = 0

    def write_frame(self, key: str, frame: Frames) -> None:
        if key not in self._videos:
            assert self._codec is not None
            path = self._root / VIDEO_V21.format(video_key=key, **self._names())
            self._videos[key] = VideoWriter(path, self._codec, self._rate_hz)
        self._videos[key].append(frame)

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        path = self._root / DATA_V21.format(**self._names())
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        for video in self._videos.values():
            video.close()
        self._num_videos += len(self._videos)
        self._videos = {}
        self._index = index + 1
        episode = {"episode_index": index, "tasks": [instruction], "length": len(rows)}
        self._write_line("episodes", episode)
        numbers = {"episode_index": index, "stats": as_lists(statistics)}
        self._write_line("episodes_stats", numbers)

    def close(self, tasks: list[str]) -> dict[str, Any]:
        for index, task in enumerate(tasks):
            self._write_line("tasks", {"task_index": index, "task": task})
        return {
            "codebase_version": "v2.1",
            "total_chunks": -(-self._index // CHUNK),
            "total_videos": self._num_videos,
            "data_path": DATA_V21,
            "video_path": VIDEO_V21 if self._codec else None,
        }

    def _names(self) -> dict[str, int]:
        return {"episode_chunk": self._index // CHUNK, "episode_index": self._index}

    def _write_line(self, name: str, data: Mapping[str, Any]) -> None:
        with (self._root / f"meta/{name}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(data, ensure_ascii=False) + "\n")


# LeRobot's version 3.0: data files and videos hold many episodes each, up to a size.

DATA_MB, VIDEO_MB = 100, 200
"""A file of this size gets no further episode."""
NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_V30 = f"data/{NUMBERED}.parquet"
VIDEO_V30 = f"videos/{{video_key}}/{NUMBERED}.mp4"
EPISODES = f"meta/episodes/{NUMBERED}.parquet"

ROWS = 100
"""How many episodes' descriptions are in memory at a time."""


def write_v30(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`."""
    write_data_set(source, target, options, FilesV30)


class FilesV30:
    """The files of version 3.0; see `Files`."""

    def __init__(self, root: Path, codec: str | None, rate_hz: float) -> None:
        self._codec, self._rate_hz, self._root = codec, rate_hz, root
        self._data = TableFiles(root, DATA_V30)
        self._episodes = TableFiles(root, EPISODES)
        self._rows: list[dict[str, Any]] = []
        self._videos: dict[str, VideoWriter] = {}
        self._video_numbers: dict[str, int] = {}
        self._num_frames = 0

    def write_frame(self, key: str, frame: Frames) -> None:
        if key not in self._videos:
            assert self._codec is not None
            number = self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
            path = self._root / VIDEO_V30.format(video_key=key, **_numbers(number))
            self._videos[key] = VideoWriter(path, self._codec, self._rate_hz)
        self._videos[key].append(frame)

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        length = len(rows)
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [instruction],
            "length": length,
            **_prefixed("data", _numbers(self._data.number)),
            "dataset_from_index": self._num_frames,
            "dataset_to_index": self._num_frames + length,
        }
        self._data.write(rows)
        for key, video in list(self._videos.items()):
            row |= _prefixed(f"videos/{key}", _numbers(self._video_numbers[key]))
            row[f"videos/{key}/from_timestamp"] = video.time_of(video.num_frames - length)
            row[f"videos/{key}/to_timestamp"] = video.time_of(video.num_frames)
            if video.size >= VIDEO_MB * 2**20:
                self._videos.pop(key).close()
        for key, numbers in as_lists(statistics).items():
            row |= _prefixed(f"stats/{key}", numbers)
        self._num_frames += length
        self._rows.append(row | _prefixed("meta/episodes", _numbers(self._episodes.number)))
        if len(self._rows) == ROWS:
            self._flush()

    def close(self, tasks: list[str]) -> dict[str, Any]:
        for video in self._videos.values():
            video.close()
        self._flush()
        self._data.close()
        self._episodes.close()
        pq.write_table(_task_table(tasks), self._root / "meta/tasks.parquet")
        return {
            "codebase_version": "v3.0",
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "data_path": DATA_V30,
            "video_path": VIDEO_V30 if self._codec else None,
        }

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
        path = self._root / self._pattern.format(**_numbers(self.number))
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


def _numbers(number: int) -> dict[str, int]:
    return {"chunk_index": number // CHUNK, "file_index": number % CHUNK}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _task_table(tasks: list[str]) -> pa.Table:
    """Return the table of tasks, whose text pandas takes as its index, as LeRobot expects."""
    text = "__index_level_0__"
    columns = [
        {
            "name": name,
            "field_name": field,
            "pandas_type": kind,
            "numpy_type": numpy,
            "metadata": None,
        }
        for name, field, kind, numpy in (
            ("task_index", "task_index", "int64", "int64"),
            (None, text, "unicode", "object"),
        )
    ]
    described = {"index_columns": [text], "column_indexes": [], "columns": columns}
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), text: tasks})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})
