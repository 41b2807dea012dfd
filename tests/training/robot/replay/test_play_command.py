"""The options of `ttm data play` that need ROS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ttm.training import cli
from ttm.training.robot import tools as replay


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lockstep"], "are for --topics"),
        (["--contract", "robot.yaml"], "are for --topics"),
        (["--topics", "--out", "film.mp4"], "writes no file"),
        (["--topics", "--contract", "nowhere.yaml"], "no contract at nowhere.yaml"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "play", "episode.hdf5", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_program_gets_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(replay, "run_program", lambda *given: (started.append(given), 7)[1])
    contract = tmp_path / "robot.yaml"
    contract.touch()
    words = ["e.hdf5", "--demo", "demo_1", "--topics", "--contract", str(contract), "--lockstep"]
    assert cli.main(["data", "play", *words]) == 7
    options = {"episode": "e.hdf5", "demo": "demo_1", "contract": str(contract), "lockstep": True}
    assert started == [("replay", options)]
