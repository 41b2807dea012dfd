"""Keeps the memory of a policy: the topic `~/memory`, snapshots in files, and the file of a crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.node import Node
from std_msgs.msg import Float32MultiArray

from ttm.policy.errors import UserError
from ttm.policy.files import partial_path, write_atomically
from ttm.policy.snapshot import read_snapshot, snapshot_to_bytes
from ttm_policy.contract import RobotContract, load_contract
from ttm_policy.control_loop import ControlLoop, MemoryReport, Vector
from ttm_policy.guards import REARM
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import LATCHED


class MemoryTopic:
    """The topic `~/memory`."""

    def __init__(self, node: Node):
        self._publisher = node.create_publisher(Float32MultiArray, "~/memory", LATCHED)
        self.report = MemoryReport()
        """The memory after the last call. To read it never waits for the network."""

    def publish(self, report: MemoryReport) -> None:
        self.report = report
        self._publisher.publish(report.to_message())


def save_snapshot(path: str | Path, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write all arrays. A kill during writing leaves the last whole snapshot in place."""
    try:
        write_atomically(Path(path), snapshot_to_bytes(snapshot))
    except OSError as error:
        problem = f"cannot write the snapshot {path} ({error.strerror})"
        raise UserError(f"{problem}; set another snapshot_path") from error


def load_snapshot(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `save_snapshot` wrote. It never unpickles."""
    try:
        return read_snapshot(Path(path))
    except FileNotFoundError as error:
        raise UserError(f"no snapshot at {path}; call snapshot_memory first") from error
    except (OSError, UserError) as error:
        raise UserError(f"{path} is not a memory snapshot ({error}); take a new one") from error


class Recovery:
    """The file `recovery_path` of a running episode, from which a respawned process continues.

    If the file is there when a process starts, the process before it has crashed; `resume_after_crash` says
    what follows. It is written after ticks, and at once when the memory is reset, erased or restored, but not
    flushed to the disk: a power cut ends the episode anyway. Without the parameter, no method does anything.
    `executed` and `save` belong to the thread of the network.
    """

    def __init__(self, loop: ControlLoop, parameters: PolicyParameters, logger: RcutilsLogger):
        self._loop, self._parameters, self._logger = loop, parameters, logger
        self._path = Path(parameters.recovery_path) if parameters.recovery_path else None
        self._marker = self._path and self._path.with_name(f"{self._path.name}.inactive")
        self._period_ns = round(parameters.recovery_period_s * 1e9)
        self._saved_ns = 0
        self._over = False

    def restore(self, contract: RobotContract) -> str:
        """Take over the memory after a crash; return why the robot stands still, or an empty text."""
        if self._path is None or not self._path.is_file():
            return ""
        problem, runner = self._load(self._path), self._loop.runner
        rule = f"(resume_after_crash is {self._parameters.resume_after_crash})"
        where = f"at tick {runner.tick} of: {runner.instruction}"
        if not self._resumes(contract):
            then = f"{problem}; it begins from the start" if problem else f"it goes on {where}"
            self._logger.warning(f"it crashed and stands still; after rearm {then} {rule}")
            return f"the policy crashed and was started again; {REARM}"
        if problem:
            self._logger.warning(f"it crashed; {problem} {rule}")
        else:
            self._loop.warning = f"it crashed and went on by itself at tick {runner.tick}"
            self._logger.warning(f"it crashed and goes on by itself {where} {rule}")
        return ""

    def outlook(self, contract: RobotContract) -> str:
        """Return in words what the robot will do if this process crashes."""
        if self._path is None:
            return "nothing is kept"
        return "goes on by itself" if self._resumes(contract) else "stands still until rearm"

    def _resumes(self, contract: RobotContract) -> bool:
        # Every contract but that of the simulated robot, unchanged, is that of a real one.
        simulated = self._parameters.lockstep or contract == load_contract()
        return {"always": True, "never": False}.get(self._parameters.resume_after_crash, simulated)

    def _load(self, path: Path) -> str:
        """Load the memory, and return an empty text, or why it is empty."""
        age_s, most_s = time.time() - path.stat().st_mtime, self._parameters.recovery_max_age_s
        if abs(age_s) > most_s:  # below 0 where the clock was set back
            limit = f"recovery_max_age_s is {most_s:g}"
            return f"the memory is empty, since {path} is {age_s:.0f} s old and {limit}"
        try:
            self._loop.load(read_snapshot(path))
        except (OSError, UserError) as error:
            return f"the memory is empty, since it cannot go on from {path}: {error}"
        self._loop.resume()
        return ""

    def executed(self, command: Vector) -> None:
        """Note the command (A,) in force, and save the memory if it is time."""
        self._loop.executed(command)
        if not 0 <= self._loop.last_stamp_ns - self._saved_ns < self._period_ns:
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
            problem = f"cannot write {self._path} ({error.strerror})"
            self._logger.warning(f"{problem}; set recovery_path to another")

    def mark(self, *, active: bool) -> None:
        """Note whether the node is active, which a respawned process shall then be as well."""
        if self._marker is None:
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
        return self._marker is not None and self._marker.exists()

    def drop(self) -> None:
        """Remove the saved memory. Nothing is saved any more."""
        self._over = True
        self._remove(self._path)

    def end(self) -> None:
        """Remove all that was saved, since the process ends in order."""
        self.drop()
        self._remove(self._marker)

    def _remove(self, path: Path | None) -> None:
        """Remove a file if it is there. If that fails, warn and go on."""
        try:
            if path is not None:
                path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass  # a folder on the way is a file, so that nothing was written there
        except OSError as error:
            self._logger.warning(f"cannot remove {path} ({error.strerror}); remove it yourself")
