"""How a program ends: on Ctrl-C before it heeds signals itself, and although something in it does not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ttm_policy import __main__ as programs


class Ended(Exception):
    """Stands for the end of the process."""


def test_ctrl_c_while_a_program_is_imported_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(code: int) -> None:
        raise Ended(code)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(programs, "import_module", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Ended, match="130"):
        programs.main(["policy_node"])
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("words", "given"), [(['{"a": 1}'], ('{"a": 1}',)), (["--ros-args", "-p", "rate:=1"], ())]
)
def test_ctrl_c_before_a_program_heeds_signals_is_its_end_too(
    words: list[str], given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []

    def main(*arguments: str) -> int:
        called.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "import_module", lambda _: SimpleNamespace(main=main))
    assert programs.main(["live_check", *words]) == 130
    assert called == [given]


def test_a_wrong_name_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert programs.main(["policy_nod"]) == 2
    assert programs.main(["webs.web_node"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("ttm: error: no program policy_nod; give one of: policy_node, ")
    assert "no program webs.web_node" in second
    assert signal.getsignal(signal.SIGINT) is before


def test_a_package_that_a_program_misses_is_not_taken_for_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"no rclpy for {name}", name="rclpy")

    monkeypatch.setattr(programs, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"no rclpy for ttm_policy\.web\.web_node"):
        programs.main(["web_node"])


WAITS_AT_EXIT = """
import atexit, multiprocessing, time
from ttm_policy.programs import run_with_ros
atexit.register(time.sleep, 600)
# It has the standard output, too, so that `subprocess.run` waits for its end.
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
run_with_ros("node", lambda: print("closed") or 3)
"""
HOLDS_PYTHON = """
import ctypes, os, signal
from ttm_policy.programs import StopSignals
signals = StopSignals(0.1)
os.kill(os.getpid(), signal.SIGTERM)
while not signals.requested:
    pass
ctypes.PyDLL(None).sleep(600)  # with Python's lock, as a library that waits for another thread of its own
"""


IS_AT_WORK = HOLDS_PYTHON.replace("PyDLL", "CDLL")


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        (WAITS_AT_EXIT, 3, "closed"),
        (HOLDS_PYTHON, 1, "Timeout"),
        (IS_AT_WORK, 1, "did not end by itself within 0.1 s"),
    ],
)
def test_a_program_ends_whatever_else_waits_in_it(program: str, code: int, words: str) -> None:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
