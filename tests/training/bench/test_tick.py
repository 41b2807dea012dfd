"""`ttm bench tick`: every part gives figures. No test depends on time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ttm.policy import UserError
from ttm.policy.cores import registry
from ttm.policy.openvino_engine import supported_precisions
from ttm.training.bench import tick
from ttm.training.bench.tick import EAGER, UNIT, BenchTickCommand

KINDS = ("ttm", "transformer")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ticks of a small unit; the weights of the real one alone take 51 MB."""
    values = {
        "WIDTH": 64,
        "UNIT": replace(UNIT, num_layers=2, mlp_size=32),
        "MLP_SIZES": (32, 64),
        "BLOCKS": 1,
        "FLAT_TICKS": 60,
        "WHOLE_TICKS": 3,
        "TORCH_TICKS": 2,
        "SERVED_TICKS": 50,
    }
    for name, value in values.items():
        monkeypatch.setattr(tick, name, value)
    monkeypatch.setattr(registry, "CORES", {kind: registry.CORES[kind] for kind in KINDS})


@pytest.mark.usefixtures("small")
def test_every_part_prints_a_table_and_gives_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "new" / "tick.json"
    torch.set_num_threads(2)
    assert BenchTickCommand(presets=("tiny", "shipped"), threads=1, json=path).run() == 0
    assert torch.get_num_threads() == 2
    printed = capsys.readouterr().out
    for text in ("<= 0.55", "50 to 60", "< 10", "2 x 64x64", *KINDS):
        assert text in printed
    figures = json.loads(path.read_text())
    precisions = supported_precisions()
    assert [row["how"] for row in figures["unit"]] == [EAGER, *precisions] * 2
    assert [row["precision"] for row in figures["whole"]] == ["float32", *precisions] * 2
    assert [row["kind"] for row in figures["cores"]] == list(KINDS)
    for row in (*figures["unit"], *figures["whole"], *figures["cores"]):
        reduced = "bfloat16" in (row.get("how"), row.get("precision"))
        assert row["error"] < (0.2 if reduced else 1e-4)
        assert row["median_ms"] > 0
    assert [(row["early"], row["late"]) for row in figures["flat"]] == [([10, 20], [50, 60])] * 2


def test_threads_below_1_are_refused() -> None:
    with pytest.raises(UserError, match="--threads is 0; give 1 or more"):
        BenchTickCommand(threads=0).run()


@pytest.mark.usefixtures("small")
def test_what_ttm_serve_adds_is_the_round_trip_without_the_policy(tmp_path: Path) -> None:
    pytest.importorskip("msgpack", reason="the extra [serve] is not here")
    path = tmp_path / "tick.json"
    assert BenchTickCommand(parts=("served",), json=path).run() == 0
    rows = {row["what"]: row for row in json.loads(path.read_text())["served"]}
    medians = {what: row["median_ms"] for what, row in rows.items()}
    assert 0 < medians["added"] < medians["round trip"]
    assert 0 < medians["the policy"] < medians["round trip"]
