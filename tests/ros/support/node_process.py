"""Nodes in processes that start quickly: children of one process that has imported their programs.

A Python that imports `policy_node` anew takes seconds. That the programs start so, too, is what the tests
of the commands see, which start them as users do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import policy_faults
import yaml

WAIT_S = 180.0
"""Far more than anything takes; a test that waits this long has failed."""
DIAGNOSTICS_PERIOD_S = 0.2
"""So that no test waits a second for words that come without a change of state."""
PROGRAMS = ("policy_node", "recorder_node", "sim_node", "teleop_node")
MAIN_RETURNED = 99
"""The exit code if `main` returns none, but leaves the end of the process to the interpreter."""
SERVER = multiprocessing.get_context("forkserver")
"""The children's parent. It has one thread alone: a child would keep for ever what other threads lock."""
SERVER.set_forkserver_preload([f"ttm_policy.{name}" for name in PROGRAMS])
IN_TESTS = {"END_WITHIN_S": WAIT_S, "DIAGNOSTICS_PERIOD_S": DIAGNOSTICS_PERIOD_S}
"""Constants of a program in tests: a busy machine has as long as it needs to stop the robot."""


class NodeProcess:
    """A node with parameters in a process of its own."""

    def __init__(
        self,
        name: str,
        folder: Path,
        parameters: Mapping[str, Any],
        fault: str = "",
        remappings: Sequence[str] = (),
        constants: Mapping[str, float] = IN_TESTS,
    ) -> None:
        """folder: for the node's own files, not there yet. fault: the name of one of `policy_faults`.

        remappings: as a command line has them, each after `-r`. constants: those of the program that differ.
        """
        folder.mkdir(parents=True)
        file = folder / "parameters.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(parameters)}}))
        self._log, self.loading = folder / "log", folder / policy_faults.LOADING
        """`loading` is there while the fault "slow" keeps the policy from being loaded."""
        arguments = (name, file, fault, tuple(remappings), constants, dict(os.environ))
        self._process = SERVER.Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.exitcode

    @property
    def output(self) -> str:
        """What the node has written so far on its standard output and error."""
        return self._log.read_text() if self._log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        self._process.join(WAIT_S)
        assert self.exit_code is not None, "the process does not end"
        return self.exit_code

    def end(self) -> int:
        """End the process if it is still there, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()


def _run(
    name: str,
    parameters: Path,
    fault: str,
    remappings: Sequence[str],
    constants: Mapping[str, float],
    environment: Mapping[str, str],
) -> NoReturn:
    """Be the node."""
    os.environ.update(environment)
    with open(parameters.with_name("log"), "wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    sys.argv = [name, "--ros-args", *remappings, "--params-file", str(parameters)]
    program: Any = import_module(f"ttm_policy.{name}")
    for constant, value in constants.items():
        setattr(program, constant, value)
    policy_faults.FAULTS[fault]()
    code = program.main()
    raise SystemExit(MAIN_RETURNED if code is None else code)
