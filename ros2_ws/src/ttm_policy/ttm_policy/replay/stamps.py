"""The stamps of a recorded episode as those of ROS messages. It uses no ROS."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.play.ticks import capture_times_s
from ttm.policy.errors import UserError

FIRST_S = 2.0
"""Episodes whose times begin earlier are shifted to this one: ROS takes 0 for a clock that is not there."""

LATEST_S = 2**31
"""The seconds of a stamp are an int32."""


def stamps_ns(episode: EpisodeReader) -> npt.NDArray[np.int64]:
    """Return the stamp of each tick, (T,) int64, in ns: when its observation was captured.

    Episodes without times have those of their rate. Raises `UserError` unless each time is later than
    the one before.
    """
    times_s = capture_times_s(episode)
    if times_s[0] < FIRST_S:
        times_s = times_s - times_s[0] + FIRST_S
    seconds, fractions = np.divmod(times_s, 1.0)
    stamps = seconds.astype(np.int64) * 1_000_000_000 + np.round(fractions * 1e9).astype(np.int64)
    problems = [f"tick {n + 1} is not later than the one before" for n in _backward(stamps)]
    if times_s[-1] >= LATEST_S:
        problems.append("its times end after the year 2038")
    if problems:
        raise UserError(f"{episode.path}: {problems[0]}; mend its timestamps; a film needs none")
    return stamps


def _backward(stamps: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the ticks whose next one is not later."""
    return np.flatnonzero(np.diff(stamps) <= 0)
