"""`ttm data bags` checks its options, and starts a program of the ROS package."""

from __future__ import annotations

from typing import Any

import pytest

from ttm.training import cli
from ttm.training.robot import tools as bags

WORDS = ["data", "bags", "from", "to", "--contract", "robot.yaml"]


def test_options_of_reading_are_refused_for_writing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, "--to", "mcap", "--rate-hz", "5"]) == 2
    assert "--rate-hz is for bags that are read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module"), [(["--rate-hz", "5"], "bags.read"), (["--to", "sqlite3"], "bags.write")]
)
def test_it_starts_the_program_that_reads_or_writes(
    words: list[str], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(bags, "run_program", lambda *given: (started.append(given), 7)[1])
    monkeypatch.setattr(bags, "find_spec", lambda _: object())
    assert cli.main([*WORDS, *words]) == 7
    ((name, options),) = started
    assert name == module
    assert ("rate_hz" in options) == (module == "bags.read")
