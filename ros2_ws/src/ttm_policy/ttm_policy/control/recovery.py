"""Keeps the memory in a file while an episode runs, so that a respawned process goes on with it.

The file is written after ticks, and at once when the memory is reset, erased or restored. It is not
flushed to the disk, which the crash of a process does not need: a power cut ends the episode anyway.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from ttm.policy.errors import UserError
from ttm.policy.files import partial_path
from ttm.policy.run.snapshot import read_snapshot, snapshot_to_bytes
from ttm_policy.control.control_loop import ControlLoop, Vector
from ttm_policy.parameters import PolicyParameters


class Logger(Protocol):
    """What reports go to."""

    def info(self, message: str) -> Any: ...

    def warning(self, message: str) -> Any: ...


class Recovery:
    """The file of the parameter `recovery_path`. Without that parameter, no method does anything.

    `acted` and `save` belong to the thread of the network, which alone changes the memory.
    """

    def __init__(self, loop: ControlLoop, parameters: PolicyParameters, logger: Logger):
        self._loop, self._logger = loop, logger
        self._path = Path(parameters.recovery_path) if parameters.recovery_path else None
        self._period_ns = round(parameters.recovery_period_s * 1e9)
        self._max_age_s = parameters.recovery_max_age_s
        self._saved_ns = 0
        self._over = False

    def restore(self) -> None:
        """Go on with the memory of a process that has crashed, unless too much time has passed."""
        if self._path is None or not self._path.is_file():
            return
        age_s = time.time() - self._path.stat().st_mtime
        if age_s > self._max_age_s:
            limit = f"recovery_max_age_s is {self._max_age_s:g}"
            self._logger.warning(
                f"{self._path} is {age_s:.0f} s old and {limit}: the memory is empty"
            )
            return
        try:
            self._loop.load(read_snapshot(self._path))
        except (OSError, UserError) as error:
            self._logger.warning(f"cannot go on from {self._path}, the memory is empty: {error}")
            return
        runner = self._loop.runner
        self._loop.resume()
        self._logger.info(f"goes on at tick {runner.tick} of: {runner.instruction}")

    def acted(self, command: Vector) -> None:
        """Note the command (A,) in force, as `ControlLoop.acted`, and save the memory if it is time."""
        self._loop.acted(command)
        stamp_ns = self._loop.last_stamp_ns
        if not 0 <= stamp_ns - self._saved_ns < self._period_ns:
            self.save()

    def save(self) -> None:
        """Write the memory as it is now. If that fails, warn and go on: the robot is not stopped."""
        if self._path is None or self._over:
            return
        self._saved_ns = self._loop.last_stamp_ns
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = partial_path(self._path)
            partial.write_bytes(snapshot_to_bytes(self._loop.snapshot()))
            partial.replace(self._path)
        except OSError as error:
            self._over = True
            self._logger.warning(
                f"cannot write {self._path} ({error.strerror}); a respawned process will begin with "
                "an empty memory. Set recovery_path to a path that can be written"
            )

    def mark(self, *, active: bool) -> None:
        """Note whether the node is active, which a respawned process shall then be as well."""
        if self._path is None:
            return
        if active:
            self._remove(self._marker)
            return
        try:
            self._marker.parent.mkdir(parents=True, exist_ok=True)
            self._marker.touch()
        except OSError as error:
            self._logger.warning(f"cannot write {self._marker} ({error.strerror})")

    @property
    def was_deactivated(self) -> bool:
        """Whether a process before this one was deactivated, and crashed afterwards."""
        return self._path is not None and self._marker.exists()

    @property
    def _marker(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}.inactive")

    def drop(self) -> None:
        """Remove the saved memory. Nothing is saved any more."""
        self._over = True
        if self._path is not None:
            self._remove(self._path)

    def end(self) -> None:
        """Remove all that was saved, since the process ends in order."""
        self.drop()
        if self._path is not None:
            self._remove(self._marker)

    def _remove(self, path: Path) -> None:
        """Remove a file if it is there. If that fails, warn and go on."""
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass  # a folder on the way is a file, so that nothing was written there
        except OSError as error:
            self._logger.warning(f"cannot remove {path} ({error.strerror}); remove it yourself")
