"""`ttm study mikasa`, on the memory task of `tests/sim/memory_point_env.py`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ttm.policy import PolicyRunner, UserError
from ttm.sim import actors
from ttm.sim.collect import CollectCommand
from ttm.training.study.mikasa import StudyMikasaCommand

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"
TINY = """
core: lstm
core-options: [num_layers=1]
steps: 2
batch-size: 2
image-size: 8
validations: 1
"""


def test_a_study_makes_what_is_missing_and_refuses_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "sim"))
    monkeypatch.setattr(actors, "PolicyRunner", partial(PolicyRunner, engine="torch"))
    (tmp_path / "tiny.yaml").write_text(TINY)
    data = tmp_path / "out" / "recall" / "demonstrations"
    CollectCommand(data, "recall", MEMORY_POINT, episodes=4, workers=1, first_seed=50).run()
    command = StudyMikasaCommand(
        task=("recall",),
        config=tmp_path / "tiny.yaml",
        seeds=(0, 1),
        demonstrations=4,
        episodes=2,
        env=MEMORY_POINT,
        out=tmp_path / "out",
    )
    assert command.run() == 0
    assert len(list(data.glob("*.hdf5"))) == 4  # as many as it wants were there
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert [row["seed"] for row in figures] == [0, 1]
    assert all([rate["episodes"] for rate in row["rates"]] == [2] * 5 for row in figures)
    assert "all" in capsys.readouterr().out

    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*/seed_*/**/*.safetensors")}
    assert len(made) >= 4
    assert command.run() == 0
    assert all(path.stat().st_mtime_ns == time for path, time in made.items())
    assert json.loads((tmp_path / "out" / "figures.json").read_text()) == figures

    (tmp_path / "tiny.yaml").write_text(TINY.replace("steps: 2", "steps: 3"))
    with pytest.raises(UserError, match=r"steps is 3, but .* was trained with 2"):
        replace(command, seeds=(0,)).run()
