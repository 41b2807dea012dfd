"""`ttm data convert` with --contract does what `ttm data bags` does."""

from __future__ import annotations

from typing import Any

import pytest

from ttm.training import cli
from ttm.training.robot import tools as bags


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "mcap"], "give the robot's topics by --contract"),
        (["--to", "lerobot", "--contract", "robot.yaml"], "--contract is for bags"),
        (["--jpeg-quality", "90", "--contract", "robot.yaml"], "leave the others out"),
        (
            ["--to", "mcap", "--rate-hz", "5", "--contract", "robot.yaml"],
            "is for bags that are read",
        ),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "convert", "from", "to", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--contract", "robot.yaml", "--rate-hz", "5", "--instruction", "wave", "--spec", "s.yaml"],
        ["--contract", "robot.yaml", "--to", "sqlite3", "--overwrite"],
    ],
)
def test_it_starts_what_ttm_data_bags_starts(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(bags, "run_program", lambda *given: (started.append(given), 7)[1])
    monkeypatch.setattr(bags, "find_spec", lambda _: object())
    for command in ("convert", "bags"):
        assert cli.main(["data", command, "from", "to", *words]) == 7
    assert started[0] == started[1]
