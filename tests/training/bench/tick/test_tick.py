"""`ttm bench tick`: the compared units are equal, and every part gives figures. No test depends on time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ttm.policy.cores import registry
from ttm.policy.cores.ttm import TokenTuringMachineUnit
from ttm.policy.errors import UserError
from ttm.policy.openvino_engine import supported_precisions
from ttm.training.bench import common as timing
from ttm.training.bench import tick as flat
from ttm.training.bench import tick as periodic_ticks
from ttm.training.bench import tick as unit
from ttm.training.bench.tick import EAGER, NUM_INPUTS, PERIODIC, UNIT, BenchTickCommand, PlainUnit
from ttm.training.bench.tick import UNIT_WIDTH as WIDTH

KINDS = ("ttm", "transformer")
QUICK = BenchTickCommand(
    threads=1,
    blocks=1,
    flat_ticks=60,
    growing_ticks=40,
    period_ticks=40,
    presets=("tiny", "shipped"),
    whole_ticks=3,
    torch_ticks=2,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small unit; the weights of the real one alone take 51 MB."""
    for module in (unit, flat):
        monkeypatch.setattr(module, "WIDTH", 64)
        monkeypatch.setattr(module, "UNIT", replace(UNIT, num_layers=2, mlp_size=32))
    monkeypatch.setattr(unit, "MLP_SIZES", (32, 64))
    monkeypatch.setattr(registry, "CORES", {kind: registry.CORES[kind] for kind in KINDS})


@pytest.mark.usefixtures("small")
def test_every_part_prints_a_table_and_gives_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "new" / "tick.json"
    torch.set_num_threads(2)
    assert replace(QUICK, json=path).run() == 0
    assert torch.get_num_threads() == 2
    printed = capsys.readouterr().out
    for text in ("<= 0.55", "50 to 60", "without a window", "< 10", "2 x 64x64", *KINDS):
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
    assert [(row["early"], row["late"]) for row in figures["flat"]] == [
        ([10, 20], [50, 60])
    ] * 2 + [([10, 20], [30, 40])]
    assert [(row["what"], row["how"]) for row in figures["periods"]] == [
        (what, how) for what in PERIODIC for how in ("PyTorch", "OpenVINO")
    ]
    assert all(
        row[name] > 0 for row in figures["periods"] for name in ("early_ms", "turn_ms", "other_ms")
    )


def test_ticks_at_which_something_new_is_taken_are_told_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A core that counts its ticks, under a clock by which the ticks at the expected phase are slow."""
    for what, slow in {"tlb": 9, "hourglass": 0}.items():
        period = PERIODIC[what].period
        clock = 0.0

        def call(
            tokens: Tensor, tick: Tensor, slow: int = slow, period: int = period
        ) -> list[Tensor]:
            nonlocal clock
            clock += 3.0 if int(tick) % period == slow else 1.0
            return [tokens, tick + 1]

        monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)  # noqa: B023
        row = periodic_ticks._row(what, "PyTorch", call, [torch.zeros(1), torch.tensor(0)], 67)
        assert (row.turn_ms, row.other_ms) == (3e3, 1e3)


def test_the_plain_restatement_is_the_unit() -> None:
    config = replace(UNIT, num_layers=2)
    ours, plain = TokenTuringMachineUnit(WIDTH, NUM_INPUTS, config), PlainUnit(WIDTH, config)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    plain.copy_weights(ours)
    memory, inputs = torch.randn(1, config.memory_size, WIDTH), torch.randn(1, NUM_INPUTS, WIDTH)
    for output, expected in zip(ours(memory, inputs), plain(memory, inputs), strict=True):
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


def test_counts_below_what_is_needed_are_refused() -> None:
    with pytest.raises(UserError, match="--flat-ticks is 1; give 40 or more"):
        replace(QUICK, flat_ticks=1).run()
