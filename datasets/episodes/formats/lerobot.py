"""What reading and writing of LeRobot data sets share: names of features, and videos by PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np

from ttm.datasets.frames import Frames
from ttm.policy.errors import UserError

ACTION = "action"
STATE = "observation.state"
IMAGES = "observation.images."
OBSERVATION = "observation."
SIMULATOR_STATE = "observation.environment_state"

OURS = CAPTURE_TIME, EXECUTED, WEIGHT = "capture_time_s", "executed_action", "loss_weight"
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

INFO = "meta/info.json"
ENCODERS = {
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "svtav1-params": "lp=1"}),
    "h264": ("libx264", {"g": "2", "crf": "23"}),
}
"""Codec -> encoder and its options. Every second frame is a key frame, as LeRobot has it, so that single
frames are found quickly."""


class VideoWriter:
    """Writes frames to an MP4 file with colour at half the resolution (yuv420p), which is lossy."""

    def __init__(self, path: Path, codec: str, rate_hz: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.num_frames = 0
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._codec = codec
        self._container: Any = av.open(str(path), "w")
        self._stream: Any = None

    def time_of(self, number: int) -> float:
        """Return the time of the frame of this number in the video, in seconds."""
        return float(number / self._rate)

    @property
    def size(self) -> int:
        """How many bytes are in the file so far; the encoder holds some frames back."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, frame: Frames) -> None:
        """Write one frame (H, W, 3). Raises `UserError` if the codec does not take its size."""
        if self._stream is None:
            self._stream = self._open(*frame.shape[:2])
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        picture.pts, picture.time_base = self.num_frames, 1 / self._rate
        self._container.mux(self._stream.encode(picture))
        self.num_frames += 1

    def close(self) -> None:
        """Write what the encoder still holds back, and close the file."""
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()

    def _open(self, height: int, width: int) -> Any:
        encoder, settings = ENCODERS[self._codec]
        refusal = UserError(
            f"{encoder} encodes no frames of {width}x{height}; give --video-codec none, which writes "
            "PNGs, or the other codec"
        )
        if height % 2 or width % 2:
            raise refusal
        os.environ.setdefault("SVT_LOG", "0")  # the AV1 encoder prints a page for each file
        stream = self._container.add_stream(encoder, self._rate, options=settings)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        try:
            with ordinary_priority():
                stream.codec_context.open()
        except av.error.FFmpegError as error:
            raise refusal from error
        return stream


def read_video(path: Path, start_s: float, count: int, rate_hz: float) -> Iterator[Frames]:
    """Yield up to `count` frames (H, W, 3) uint8 RGB from the one at `start_s` seconds on.

    Raises `UserError` for a damaged file, or a frame further than half a tick from its tick at `rate_hz`.
    """
    try:
        # Left to guess, FFmpeg renders a text file as frames, and opens the files that a playlist names.
        with av.open(str(path), format="mp4") as container:
            stream = container.streams.video[0]
            half_s = 0.5 / rate_hz
            stream.thread_type = "AUTO"
            container.seek(max(round((start_s - half_s) / stream.time_base), 0), stream=stream)
            found = 0
            for frame in container.decode(stream):
                if frame.time is not None:
                    late_s = frame.time - start_s - found / rate_hz
                    if late_s < -half_s and not found:
                        continue
                    if abs(late_s) > half_s:
                        raise UserError(
                            f"{path}: frame {found} of an episode is at {frame.time:.3f} s, not at its tick"
                        )
                yield frame.to_ndarray(format="rgb24")
                found += 1
                if found == count:
                    return
    except (av.error.FFmpegError, IndexError, OSError) as error:
        raise UserError(
            f"{path}: this video cannot be read ({error}); fetch the data set again"
        ) from error


THREADS = Path("/proc/self/task")  # holds a folder for each thread of this process, on Linux


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Give this thread and those that start meanwhile the priority that this thread has now.

    SVT-AV1 4.1 moves the thread that opens it, and its own, to the highest real-time priority where it
    may, as root may: they would starve the other processes, among them the nodes of a robot.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters, older = os.sched_getscheduler(0), os.sched_getparam(0), _threads()
    try:
        yield
    finally:
        for thread in (0, *(_threads() - older)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                if os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR):
                    os.sched_setscheduler(thread, policy, parameters)


def _threads() -> set[int]:
    """Return the threads of this process; none where the system does not tell."""
    return {int(each.name) for each in THREADS.iterdir()} if THREADS.exists() else set()
