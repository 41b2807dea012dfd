"""LeRobot's version 2.1: one data file and one video a camera for each episode."""

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
"""Episodes in a folder."""
DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def write(source: Source, target: Path, options: ConvertOptions) -> None:
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
            path = self._root / VIDEO.format(video_key=key, **self._names())
            self._videos[key] = VideoWriter(path, self._codec, self._rate_hz)
        self._videos[key].append(frame)

    def append(
        self, index: int, instruction: str, rows: pa.Table, statistics: Mapping[str, Statistics]
    ) -> None:
        path = self._root / DATA.format(**self._names())
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
            "data_path": DATA,
            "video_path": VIDEO if self._codec else None,
        }

    def _names(self) -> dict[str, int]:
        return {"episode_chunk": self._index // CHUNK, "episode_index": self._index}

    def _write_line(self, name: str, data: Mapping[str, Any]) -> None:
        with (self._root / f"meta/{name}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(data, ensure_ascii=False) + "\n")
