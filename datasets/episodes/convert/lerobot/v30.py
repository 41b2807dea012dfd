"""LeRobot's version 3.0: data files and videos hold many episodes each, up to a size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ttm.datasets.convert.lerobot.statistics import Statistics, as_lists
from ttm.datasets.convert.lerobot.video import VideoWriter
from ttm.datasets.convert.lerobot.write import write_data_set
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.convert.recording import Source
from ttm.datasets.frames import Frames

CHUNK = 1000
"""Files in a folder."""
DATA_MB, VIDEO_MB = 100, 200
"""A file of this size gets no further episode."""
NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA = f"data/{NUMBERED}.parquet"
VIDEO = f"videos/{{video_key}}/{NUMBERED}.mp4"
EPISODES = f"meta/episodes/{NUMBERED}.parquet"

ROWS = 100
"""How many episodes' descriptions are in memory at a time."""


def write(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`."""
    write_data_set(source, target, options, FilesV30)


class FilesV30:
    """The files of version 3.0; see `Files`."""

    def __init__(self, root: Path, codec: str | None, rate_hz: float) -> None:
        self._codec, self._rate_hz, self._root = codec, rate_hz, root
        self._data = TableFiles(root, DATA)
        self._episodes = TableFiles(root, EPISODES)
        self._rows: list[dict[str, Any]] = []
        self._videos: dict[str, VideoWriter] = {}
        self._video_numbers: dict[str, int] = {}
        self._num_frames = 0

    def write_frame(self, key: str, frame: Frames) -> None:
        if key not in self._videos:
            assert self._codec is not None
            number = self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
            path = self._root / VIDEO.format(video_key=key, **_numbers(number))
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
            "data_path": DATA,
            "video_path": VIDEO if self._codec else None,
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
