"""Keeps the memory in a file while an episode runs, so that a respawned process goes on with it.

A file that is there when a process starts says that the process before it has crashed. Whether the robot
then goes on by itself, or waits for a person, is the parameter `resume_after_crash`.

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
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.control.control_loop import ControlLoop, Vector
from ttm_policy.guards.e_stop import REARM
from ttm_policy.parameters import PolicyParameters


class Logger(Protocol):
    """What reports go to."""

    def warning(self, message: str) -> Any: ...


def goes_on_by_itself(parameters: PolicyParameters, contract: RobotContract) -> bool:
    """Return whether a robot moves on after a crash without being told to; see `resume_after_crash`.

    It is simulated if it waits for commands, or has the contract of the simulated robot, unchanged. Every
    other contract is that of a real robot.
    """
    simulated = parameters.lockstep or contract == load_contract()
    return {"always": True, "never": False}.get(parameters.resume_after_crash, simulated)


class Recovery:
    """The file of the parameter `recovery_path`. Without that parameter, no method does anything.

    `acted` and `save` belong to the thread of the network, which alone changes the memory.
    """

    def __init__(self, loop: ControlLoop, parameters: PolicyParameters, logger: Logger):
        self._loop, self._logger = loop, logger
        self._path = Path(parameters.recovery_path) if parameters.recovery_path else None
        self._period_ns = round(parameters.recovery_period_s * 1e9)
        self._parameters = parameters
        self._saved_ns = 0
        self._over = False

    def restore(self, contract: RobotContract) -> str:
        """Take over the memory of a process that has crashed, unless too much time has passed.

        Returns why the robot stands still until a person calls `~/rearm`, or an empty text if none has
        crashed, or it goes on by itself.
        """
        if self._path is None or not self._path.is_file():
            return ""
        resumes = goes_on_by_itself(self._parameters, contract)
        problem, runner = self._load(self._path), self._loop.runner
        rule = f"(resume_after_crash is {self._parameters.resume_after_crash})"
        where = f"at tick {runner.tick} of: {runner.instruction}"
        if not resumes:
            then = f"{problem}; it begins anew" if problem else f"it goes on {where}"
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
        goes_on = goes_on_by_itself(self._parameters, contract)
        return "goes on by itself" if goes_on else "stands still until rearm"

    def _load(self, path: Path) -> str:
        """Load the memory, and return an empty text, or why it is empty."""
        age_s, most_s = time.time() - path.stat().st_mtime, self._parameters.recovery_max_age_s
        if (
            abs(age_s) > most_s
        ):  # below 0, the clock was set back, such as at the start of a computer
            limit = f"recovery_max_age_s is {most_s:g}"
            return f"the memory is empty, since {path} is {age_s:.0f} s old and {limit}"
        try:
            self._loop.load(read_snapshot(path))
        except (OSError, UserError) as error:
            return f"the memory is empty, since it cannot go on from {path}: {error}"
        self._loop.resume()
        return ""

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
