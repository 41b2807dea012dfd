"""`ttm bench flops`: the tables that it prints and the figures that it writes, with a new core as well."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.registry import CORES, CoreEntry
from ttm.training.bench.flops import BenchFlopsCommand
from ttm.training.bench.flops_counts import HIERARCHIES


def test_command_prints_all_tables_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "new" / "flops.json"
    assert BenchFlopsCommand(json=path).run() == 0
    printed = capsys.readouterr().out
    for text in (
        "Table 2",
        "Table 3",
        "Table 4",
        "Table 5",
        "0.228",
        "8.537",
        "tiny preset",
        *CORES,
    ):
        assert text in printed
    figures = json.loads(path.read_text())
    rows = [row for table in figures["tables"] for row in table["rows"]]
    assert {row["paper_gflops"] for row in rows} >= {
        0.228,
        0.842,
        0.089,
        0.704,
        0.41,
        0.689,
        8.537,
        0.423,
    }
    assert [row["name"] for row in figures["cores"]["rows"]] == list(CORES)
    assert [row["hierarchy"] for row in figures["hierarchies"]] == list(HIERARCHIES)
    assert all(row["counter_multiply_adds"] == row["matrix_multiply_adds"] for row in rows)


@dataclass(frozen=True)
class ExampleConfig(CoreConfig):
    """A core that no module of the benchmark knows."""

    process_size: int = 8

    def build(self, width: int, num_inputs: int) -> ExampleCore:
        return ExampleCore(width)


class ExampleCore(TemporalCore):
    """One matrix product of each token."""

    num_outputs = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def initial_state(self, batch_size: int) -> CoreState:
        return {"memory": torch.zeros(batch_size, 1, self.linear.in_features)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        return self.linear(tokens)[:, :1], state


def test_a_new_core_is_counted_without_a_count_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core consists of its module and its line in the registry alone."""
    module = ModuleType("ttm.policy.cores.example")
    module.ExampleConfig = ExampleConfig  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = CoreEntry(f"{module.__name__}:ExampleConfig", "an example")
    monkeypatch.setattr(registry, "CORES", {**CORES, "example": entry})
    monkeypatch.setattr(registry, "NAMES", (*registry.NAMES, "example"))
    assert BenchFlopsCommand(json=tmp_path / "flops.json").run() == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "example" in line)
    parameters, tokens, width = 128 * 128 + 128, 17, 128
    assert line.split() == ["example", f"{parameters:,}", "0.28", "—", "—", "128"]
    row = json.loads((tmp_path / "flops.json").read_text())["cores"]["rows"][-1]
    assert row["counter_multiply_adds"] == tokens * width * width
    assert row["by_hand"] is row["total"] is None
