"""An episode as an MCAP file, which Foxglove opens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import foxglove
from foxglove.channels import RawImageChannel
from foxglove.messages import RawImage, Timestamp

from ttm.datasets.frames import Frames
from ttm.datasets.reader import EpisodeReader, Floats
from ttm.datasets.tools.play import (
    Series,
    action_series,
    camera_frames,
    capture_times_s,
    vector_series,
)

TEXT: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
"""The schema of the instruction."""


def write(episode: EpisodeReader, path: Path) -> None:
    """Write the new file `path`: images without loss, vectors as JSON, at their capture times."""
    context = foxglove.Context()
    writer = foxglove.open_mcap(path, context=context, allow_overwrite=True)
    try:
        cameras = {
            camera.name: RawImageChannel(f"/cameras/{camera.name}", context=context)
            for camera in episode.spec.cameras
        }
        actions, vectors = action_series(episode), vector_series(episode)
        channels = [(each, _channel("action", each, context)) for each in actions]
        channels += [(each, _channel("proprioception", each, context)) for each in vectors]
        told = foxglove.Channel("/instruction", schema=TEXT, context=context)
        times_ns = [round(time_s * 1e9) for time_s in capture_times_s(episode).tolist()]
        told.log({"text": episode.instruction}, log_time=times_ns[0])
        for tick, frames in enumerate(camera_frames(episode)):
            for camera, frame in frames.items():
                cameras[camera].log(_image(camera, frame, times_ns[tick]), log_time=times_ns[tick])
            for each, channel in channels:
                channel.log(_values(each, tick), log_time=times_ns[tick])
    finally:
        writer.close()


def _channel(group: str, series: Series, context: Any) -> Any:
    """Return a channel of JSON objects with a number for each label."""
    properties: dict[str, Any] = {name: {"type": "number"} for name in _names(series)}
    if series.executed is not None:
        properties["executed"] = {"type": "array", "items": {"type": "number"}}
    schema = {"type": "object", "title": series.name, "properties": properties}
    return foxglove.Channel(f"/{group}/{series.name}", schema=schema, context=context)


def _values(series: Series, tick: int) -> dict[str, Any]:
    values: dict[str, Any] = dict(zip(_names(series), _numbers(series.values[tick]), strict=True))
    if series.executed is not None:
        values["executed"] = _numbers(series.executed[tick])
    return values


def _numbers(row: Floats) -> list[float | None]:
    """Return the values of a tick; None, which is null in JSON, for those that are not finite."""
    return [value if math.isfinite(value) else None for value in row.tolist()]


def _names(series: Series) -> list[str]:
    return list(series.labels) if len(series.labels) > 1 else ["value"]


def _image(camera: str, frame: Frames, time_ns: int) -> RawImage:
    height, width, _ = frame.shape
    return RawImage(
        timestamp=Timestamp(sec=time_ns // 10**9, nsec=time_ns % 10**9),
        frame_id=camera,
        width=width,
        height=height,
        encoding="rgb8",
        step=3 * width,
        data=frame.tobytes(),
    )
