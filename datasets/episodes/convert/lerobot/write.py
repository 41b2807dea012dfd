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
from PIL import Image

from ttm.datasets.convert.facts import EPISODES, facts_line, write_spec
from ttm.datasets.convert.lerobot.features import (
    ACTION,
    CAPTURE_TIME,
    DONE,
    EXECUTED,
    IMAGES,
    REWARD,
    STATE,
    SUCCESS,
    WEIGHT,
    features_of,
    rate,
)
from ttm.datasets.convert.lerobot.places import INFO
from ttm.datasets.convert.lerobot.statistics import (
    FrameStatistics,
    Statistics,
    TotalStatistics,
    as_lists,
    of_numbers,
)
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.convert.recording import Recording, Source
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
    with (target / "meta" / EPISODES).open("w", encoding="utf-8") as facts:
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
