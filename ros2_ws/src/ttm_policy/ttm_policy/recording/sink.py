"""Writes episodes in a thread of its own, so that encoding and disks never keep messages waiting."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.layout import next_episode_path
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.errors import UserError
from ttm_policy.recording.matching import Tick
from ttm_policy.recording.values import GivenSpec, TickValues, unpacked

FLUSH_S = 1.0
"""What was recorded is handed over to the operating system so often, which notices a full disk."""
MOST_WAITING = 200
"""So many ticks may wait to be written; then the machine is too slow for the episode."""
LEAST_FREE_BYTES = 64 * 2**20
"""With less free space than this, no episode is begun."""

Row = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.float32], float, bool | None]


class EpisodeRows:
    """Appends ticks to an `EpisodeWriter`, one behind: what was done in it is known at the next one.

    What was executed is the newest report at that tick, as it is for `policy_node`. If the robot is late with
    it, the report of the tick before stands in both: in the episode, and in what a policy sees. `skipped`
    counts the ticks at the start that lacked some of the joints.
    """

    def __init__(self, writer: EpisodeWriter, values: TickValues) -> None:
        self.writer, self._values = writer, values
        self._waiting: Row | None = None
        self.skipped = 0

    def add(self, tick: Tick[Any]) -> None:
        """Take the next tick, whose messages may be serialised. Raises `UserError` if it does not fit."""
        types = self._values.types
        observed, commands = (
            {topic: unpacked(topic, message, types[topic]) for topic, message in part.items()}
            for part in (tick.observation, tick.command)
        )
        tick = replace(tick, observation=observed, command=commands)
        observation = self._values.observation(tick)
        if observation is None and self._waiting is None:
            self.skipped += 1
            return
        self._write(self._values.executed(tick), observation or {})
        action = self._values.action(tick)
        intervention = self._values.intervention(tick)
        self._waiting = observation or {}, action, tick.captured_ns / 1_000_000_000, intervention

    def end(self, num_ticks: int) -> int:
        """Write the last tick, unless it is measured; keep `num_ticks`; return how many are left."""
        if not self._values.measured.is_needed:
            self._write(None, {})
        self.writer.end_at(max(num_ticks - self.skipped, 0))
        return self.writer.num_samples

    def _write(
        self, executed: npt.NDArray[np.float32] | None, after: dict[str, npt.NDArray[Any]]
    ) -> None:
        """Write the waiting tick. after: the observation of the next one."""
        if self._waiting is not None:
            observation, action, timestamp_s, intervention = self._waiting
            if self._values.measured.is_needed:
                action = self._values.measured.action(action, observation, after)
            self.writer.append(
                observation,
                action,
                timestamp_s=timestamp_s,
                executed_action=executed,
                intervention=intervention,
            )


@dataclass(frozen=True)
class Written:
    """An episode that is complete on the disk."""

    path: Path
    num_samples: int


@dataclass(frozen=True)
class Failed:
    """An episode that could not be recorded, and of which nothing is left.

    `number` says which one, as `EpisodeSink.begin` returned it.
    """

    number: int
    reason: str


class EpisodeSink:
    """Takes the ticks of one episode after the other. The calls return at once.

    The thread puts what became of each episode into `results`.
    """

    def __init__(
        self,
        folder: Path,
        given: GivenSpec,
        *,
        jpeg_quality: int | None = None,
        cmd_vel_stamped: bool = True,
    ) -> None:
        """folder: where the episodes go. Their numbers go on after those that are there."""
        self._folder, self._given, self._jpeg_quality = folder, given, jpeg_quality
        self._cmd_vel_stamped = cmd_vel_stamped
        self.results: Queue[Written | Failed] = Queue()
        self._jobs: Queue[tuple[int, Callable[[], None]] | None] = Queue()
        self._number = 0
        self._rows: EpisodeRows | None = None
        self._flushed_s = 0.0
        self._thread = threading.Thread(target=self._work, name="episode writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of ticks that are not written yet."""
        return self._jobs.qsize()

    def begin(self, newest: Mapping[str, Any]) -> int:
        """Begin an episode and return its number.

        newest: the newest message of each topic, by which its cameras have their sizes. Raises `UserError`
        if one of them is damaged, or the folder cannot take an episode.
        """
        values = TickValues(
            self._given.contract,
            self._given.complete_from(newest),
            cmd_vel_stamped=self._cmd_vel_stamped,
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise UserError(
                f"cannot record to {self._folder} ({error.strerror}); name another folder"
            ) from error
        if free < LEAST_FREE_BYTES:
            raise UserError(
                f"only {free / 2**20:.0f} MiB are free in {self._folder}; make space, or name another "
                "folder"
            )
        self._number += 1
        self._do(lambda: self._begin(values))
        return self._number

    def put(self, tick: Tick[Any]) -> None:
        """Write one tick. Raises `UserError` if too many wait already."""
        if self.waiting > MOST_WAITING:
            raise UserError(
                f"{MOST_WAITING} ticks wait to be written; processor or disk are too slow for these "
                "frames: set jpeg_quality, a lower rate_hz, or smaller images"
            )
        self._do(lambda: self._write(tick))

    def finish(self, num_ticks: int, instruction: str, success: bool | None) -> None:
        """Complete the episode with the first `num_ticks` that were put."""
        self._do(lambda: self._finish(num_ticks, instruction, success))

    def discard(self) -> None:
        """Delete the episode."""
        self._do(self._abandon)

    def close(self) -> None:
        """Complete what was finished, delete an episode that was not, and end the thread."""
        self._do(self._abandon)
        self._jobs.put(None)
        self._thread.join()

    def _do(self, job: Callable[[], None]) -> None:
        """Have the thread do something for the episode in hand."""
        self._jobs.put((self._number, job))

    def _work(self) -> None:
        while (next_job := self._jobs.get()) is not None:
            number, job = next_job
            try:
                job()
            except Exception as error:  # nobody else would see it in this thread
                reason = str(error) if isinstance(error, UserError) else repr(error)
                self._abandon()
                self.results.put(Failed(number, " ".join(reason.split())))

    def _begin(self, values: TickValues) -> None:
        self._abandon()
        path = next_episode_path(self._folder)
        writer = EpisodeWriter(path, values.spec, jpeg_quality=self._jpeg_quality)
        self._rows, self._flushed_s = EpisodeRows(writer, values), time.monotonic()

    def _write(self, tick: Tick[Any]) -> None:
        if self._rows is None:
            return  # a tick before it failed
        self._rows.add(tick)
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self._rows.writer.flush()
            self._flushed_s = time.monotonic()

    def _finish(self, num_ticks: int, instruction: str, success: bool | None) -> None:
        if self._rows is None:
            return
        count = self._rows.end(num_ticks)
        path = self._rows.writer.finish(instruction=instruction, success=success, split=None)
        self._rows = None
        self.results.put(Written(path, count))

    def _abandon(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.writer.abandon()
