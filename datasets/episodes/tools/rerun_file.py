"""An episode as a recording of rerun, which its viewer opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import rerun

from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.play import (
    Series,
    action_series,
    camera_frames,
    capture_times_s,
    vector_series,
)


def write(episode: EpisodeReader, path: Path) -> None:
    """Write the new file `path`, with the timelines `tick` and `capture_time`.

    Frames are stored without loss.
    """
    name = f"{episode.path.stem}_{episode.name}"
    stream = rerun.RecordingStream("ttm_policy", recording_id=name)
    stream.save(path)
    try:
        stream.send_recording_name(name)
        stream.log("instruction", rerun.TextDocument(episode.instruction), static=True)
        series = list(_series(episode))
        for entity, each in series:
            stream.log(entity, rerun.SeriesLines(names=list(each.labels)), static=True)
        times_s = capture_times_s(episode)
        for tick, frames in enumerate(camera_frames(episode)):
            stream.set_time("tick", sequence=tick)
            stream.set_time("capture_time", timestamp=float(times_s[tick]))
            for camera, frame in frames.items():
                stream.log(f"cameras/{camera}", rerun.Image(frame))
            for entity, each in series:
                stream.log(entity, rerun.Scalars(each.values[tick]))
    finally:
        stream.flush()
        stream.disconnect()


def _series(episode: EpisodeReader) -> Iterator[tuple[str, Series]]:
    """Yield (entity, series)."""
    for each in action_series(episode):
        yield f"action/{each.name}", each
        if each.executed is not None:
            yield (
                f"executed_action/{each.name}",
                Series(each.name, each.unit, each.labels, each.executed),
            )
    for each in vector_series(episode):
        yield f"proprioception/{each.name}", each
