"""`ttm bench tick`: the compared units are equal, and every part gives figures. No test depends on time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ttm.policy import UserError
from ttm.policy.cores import registry
from ttm.policy.cores.ttm import TokenTuringMachineUnit
from ttm.policy.openvino_engine import supported_precisions
from ttm.training.bench import common, tick
from ttm.training.bench.tick import (
    EAGER,
    NUM_INPUTS,
    PERIODIC,
    UNIT,
    WIDTH,
    BenchTickCommand,
    PlainUnit,
)

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
        "GROWING_TICKS": 40,
        "PERIOD_TICKS": 40,
        "WHOLE_TICKS": 3,
        "TORCH_TICKS": 2,
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


def test_ticks_at_which_the_state_takes_something_new_are_timed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A core that counts its ticks, under a clock by which the ticks at the expected phase are slow."""
    for what, slow in {"tlb": 9, "hourglass": 0}.items():
        period = PERIODIC[what][1]
        clock = 0.0

        def call(
            tokens: Tensor, age: Tensor, slow: int = slow, period: int = period
        ) -> list[Tensor]:
            nonlocal clock
            clock += 3.0 if int(age) % period == slow else 1.0
            return [tokens, age + 1]

        monkeypatch.setattr(common.time, "perf_counter", lambda: clock)  # noqa: B023
        row = tick.by_phase(what, call, [torch.zeros(1), torch.tensor(0)], 67)
        assert (row["turn_ms"], row["other_ms"]) == (3e3, 1e3)


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


def test_threads_below_1_are_refused() -> None:
    with pytest.raises(UserError, match="--threads is 0; give 1 or more"):
        BenchTickCommand(threads=0).run()
