"""How a program ends on Ctrl-C before it heeds signals itself."""

from __future__ import annotations

import os
import signal
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
    assert programs.main(["live_check.check_contract", *words]) == 130
    assert called == [given]
