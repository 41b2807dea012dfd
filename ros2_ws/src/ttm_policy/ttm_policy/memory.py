"""Offers the memory to ROS: the topic `~/memory`, and services to reset, erase, save and restore.

The services wait for their turn with the network while the node goes on with messages and timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.task import Future as Answered
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm.policy.files import partial_path, write_atomically
from ttm.policy.snapshot import read_snapshot, snapshot_to_bytes
from ttm_policy.contract import RobotContract, load_contract
from ttm_policy.control_loop import ControlLoop, MemoryReport, Vector
from ttm_policy.guards import REARM
from ttm_policy.inference import Worker
from ttm_policy.messages import ResetReply
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import LATCHED

# Keeps the memory in a file while an episode runs, so that a respawned process goes on with it.
#
# A file that is there when a process starts says that the process before it has crashed. Whether the robot
# then goes on by itself, or waits for a person, is the parameter `resume_after_crash`.
#
# The file is written after ticks, and at once when the memory is reset, erased or restored. It is not
# flushed to the disk, which the crash of a process does not need: a power cut ends the episode anyway.


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


# Keeps a runner's whole state in a file, from which a respawned process continues.


def save_snapshot(path: str | Path, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write all arrays. A kill during writing leaves the last whole snapshot in place."""
    try:
        write_atomically(Path(path), snapshot_to_bytes(snapshot))
    except OSError as error:
        raise UserError(
            f"cannot write the snapshot {path} ({error.strerror}); "
            "set snapshot_path to a path that can be written"
        ) from error


def load_snapshot(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `save_snapshot` wrote. It never unpickles."""
    try:
        return read_snapshot(Path(path))
    except FileNotFoundError as error:
        raise UserError(
            f"no snapshot at {path}; call snapshot_memory first, or set snapshot_path"
        ) from error
    except (OSError, UserError) as error:
        raise UserError(
            f"{path} is not a memory snapshot ({error}); take a new one with snapshot_memory"
        ) from error


Serve = Callable[[Trigger.Request, Trigger.Response], Coroutine[Any, Any, Trigger.Response]]


class MemoryInterface:
    """The topic and the services of one policy's memory.

    `reset` empties the memory under an instruction, in the thread of the network. `on_reset` is called
    after each reset with the stamp of the observation that was answered last, so
    that the caller can drop what it received before. `on_restore` is called after each restore.
    """

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        worker: Worker,
        snapshot_path: str,
        recovery: Recovery,
        *,
        reset: Callable[[str], None],
        on_reset: Callable[[int], None],
        on_restore: Callable[[], None],
    ):
        self._node, self._loop, self._worker, self._path = node, loop, worker, snapshot_path
        self._recovery = recovery
        self._reset_runner, self._on_reset, self._on_restore = reset, on_reset, on_restore
        self._publisher = node.create_publisher(Float32MultiArray, "~/memory", LATCHED)
        self.report = MemoryReport()
        """The memory after the last call. It never waits for the network."""
        # Reentrant: a service that waits for the network keeps no other callback waiting.
        group = ReentrantCallbackGroup()
        self._services = [
            node.create_service(Trigger, f"~/{name}", self._answering(call), callback_group=group)
            for name, call in (
                ("reset_memory", self._reset),
                ("erase_memory", self._erase),
                ("snapshot_memory", self._snapshot),
                ("restore_memory", self._restore),
            )
        ]

    def publish(self, report: MemoryReport) -> None:
        """Publish the state of the memory after a call."""
        self.report = report
        self._publisher.publish(report.to_message())

    def _reset(self) -> Callable[[], str]:
        """Empty the memory under the instruction in force. The answer is a `ResetReply` as JSON."""
        runner = self._loop.runner
        if not runner.instruction:
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        self._reset_runner(runner.instruction)
        self._loop.for_goal = False
        answered_ns, self._loop.last_stamp_ns = self._loop.last_stamp_ns, 0
        report = MemoryReport.of(runner)

        def then() -> str:
            self._loop.reopen()
            self.publish(report)
            self._on_reset(answered_ns)
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _erase(self) -> Callable[[], str]:
        """Empty the memory alone, in the middle of an episode, to see what the policy does without it.

        Instruction, tick count and previous action stay. The answer is a `ResetReply` as JSON.
        """
        self._loop.runner.erase_memory()
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self.publish(report)
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _snapshot(self) -> Callable[[], str]:
        """Save the memory to the file of the parameter `snapshot_path`."""
        save_snapshot(self._path, self._loop.snapshot())
        tick = self._loop.runner.tick
        return lambda: f"saved tick {tick} to {self._path}"

    def _restore(self) -> Callable[[], str]:
        """Continue from the saved memory, tick count, instruction and previous action."""
        self._loop.load(load_snapshot(self._path))
        self._loop.for_goal = False
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self._loop.reopen()
            self.publish(report)
            self._on_restore()
            return f"restored tick {report.tick} from {self._path}"

        return then

    def _answering(self, call: Callable[[], Callable[[], str]]) -> Serve:
        """Return a service that runs `call` in its turn, and then what it returns in the node's thread."""

        async def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            answered: Answered[None] = Answered()

            def conclude(future: Future[Callable[[], str]]) -> None:
                try:
                    response.message, response.success = future.result()(), True
                except UserError as error:
                    response.message, response.success = str(error), False
                    self._node.get_logger().warning(str(error))
                answered.set_result(None)

            self._worker.submit(partial(self._changing, call), conclude)
            await answered
            return response

        return serve

    def _changing(self, call: Callable[[], Callable[[], str]]) -> Callable[[], str]:
        """Run `call` in the thread of the network, and save what it made of the memory."""
        then = call()
        self._recovery.save()
        return then

    def close(self) -> None:
        """Destroy the publisher and the services."""
        self._node.destroy_publisher(self._publisher)
        for service in self._services:
            self._node.destroy_service(service)
