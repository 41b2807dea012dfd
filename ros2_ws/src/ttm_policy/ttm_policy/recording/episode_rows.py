"""Writes the ticks of an episode, each when it is known what the robot did in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_writer import EpisodeWriter
from ttm_policy.recording.matching import Tick
from ttm_policy.recording.tick_values import TickValues

Row = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.float32], float, bool | None]


class EpisodeRows:
    """Appends ticks to an `EpisodeWriter`, one behind: the next one tells what was done and measured.

    What was executed is the newest report at that tick, as it is for `policy_node`. If the robot is late with
    it, the report of the tick before stands in both: in the episode, and in what a policy is told.
    """

    def __init__(self, writer: EpisodeWriter, values: TickValues) -> None:
        self._writer, self._values = writer, values
        self._waiting: Row | None = None
        self.skipped = 0
        """Ticks at the start that lacked some of the joints."""

    @property
    def types(self) -> dict[str, str]:
        """The message type of each topic."""
        return self._values.live_types

    def add(self, tick: Tick[Any]) -> None:
        """Take the next tick. Raises `UserError` for values that contract or spec do not allow."""
        observation = self._values.observation(tick)
        if observation is None and self._waiting is None:
            self.skipped += 1
            return
        self._write(self._values.executed(tick), observation or {})
        action = self._values.action(tick)
        intervention = self._values.intervention(tick)
        self._waiting = observation or {}, action, tick.captured_ns / 1_000_000_000, intervention

    def end(self, num_ticks: int) -> int:
        """Write the last tick, keep the first `num_ticks` that were added, and return how many are left.

        After the last tick nothing is measured, so that it is left out if any part of the action is.
        """
        if not self._values.measured.is_needed:
            self._write(None, {})
        self._writer.end_at(max(num_ticks - self.skipped, 0))
        return self._writer.num_samples

    def _write(
        self, executed: npt.NDArray[np.float32] | None, after: dict[str, npt.NDArray[Any]]
    ) -> None:
        """Write the waiting tick. after: the observation of the next one."""
        if self._waiting is not None:
            observation, action, timestamp_s, intervention = self._waiting
            if self._values.measured.is_needed:
                action = self._values.measured.action(action, observation, after)
            self._writer.append(
                observation,
                action,
                timestamp_s=timestamp_s,
                executed_action=executed,
                intervention=intervention,
            )
