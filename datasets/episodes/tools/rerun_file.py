"""An episode as a recording of rerun, which its viewer opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import rerun

from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.play import camera_frames, capture_times_s, episode_series


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
        series = []
        for each in episode_series(episode):
            series.append(each)
            if each.executed is not None:
                series.append(replace(each, kind="executed_action", values=each.executed))
        for each in series:
            lines = rerun.SeriesLines(names=list(each.labels))
            stream.log(f"{each.kind}/{each.name}", lines, static=True)
        times_s = capture_times_s(episode)
        for tick, frames in enumerate(camera_frames(episode)):
            stream.set_time("tick", sequence=tick)
            stream.set_time("capture_time", timestamp=float(times_s[tick]))
            for camera, frame in frames.items():
                stream.log(f"cameras/{camera}", rerun.Image(frame))
            for each in series:
                stream.log(f"{each.kind}/{each.name}", rerun.Scalars(each.values[tick]))
    finally:
        stream.flush()
        stream.disconnect()
