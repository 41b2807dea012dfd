"""What benchmarks print and write, and how contenders are timed against each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ttm.training.bench.common import (
    BLOCK,
    DROPPED,
    Report,
    bytes_for_backward,
    decimals,
    interleaved,
    median_ms,
    rows_table,
)


def test_a_table_has_a_column_for_each_entry_and_a_line_for_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = {"core": lambda row: row[0], "cost": lambda row: decimals(row[1], 2)}
    report = Report()
    report.table(rows_table("A title", columns, [("ttm", 1.5), ("new", None)]), "a note [1]")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["A", "title"]
    for line in (["core", "cost"], ["ttm", "1.50"], ["new", "—"], ["a", "note", "[1]"]):
        assert line in lines


def test_cells_are_made_by_functions_or_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"core": "ttm", "cost": {"forward pass": 1.234}}
    columns = {
        "core": "{core}",
        "cost": "{cost[forward pass]:.1f} s",
        "all": lambda row: str(len(row)),
    }
    report = Report(tmp_path / "figures.json")
    report.rows("costs", "A title", columns, [row])
    assert ["ttm", "1.2", "s", "2"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    report.write()
    assert json.loads((tmp_path / "figures.json").read_text()) == {"costs": [row]}


def test_figures_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    report = Report(tmp_path / "figures.json", threads=2)
    report.figures["rows"] = [1.5]
    report.write()
    assert json.loads((tmp_path / "figures.json").read_text()) == {"threads": 2, "rows": [1.5]}


def test_contenders_take_turns_in_short_blocks() -> None:
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, blocks=2)  # type: ignore[misc]
    assert "".join(order) == ("a" * BLOCK + "b" * BLOCK) * 2
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys(
        "ab", 2 * (BLOCK - DROPPED)
    )


def test_medians_are_in_milliseconds() -> None:
    assert median_ms(np.array([0.001, 0.002, 0.5])) == pytest.approx(2)


def test_kept_memory_of_a_layer_is_what_its_gradients_need() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    gains = torch.randn(3, 7)

    def forward() -> Tensor:
        hidden = layer(x)  # the gradients need its input and weight
        hidden = hidden.exp()  # its output
        return (
            hidden * hidden * gains
        ).sum()  # both factors, which are that output twice, their product, and gains

    kept = (3 * 5 + 5 * 7 + 3 * 7 + 3 * 7) * 4
    assert bytes_for_backward(forward) == kept
    assert (
        bytes_for_backward(forward, besides=[*layer.parameters(), x]) == kept - (3 * 5 + 5 * 7) * 4
    )
    with torch.no_grad():
        assert bytes_for_backward(forward) == 0


def test_views_of_one_storage_count_once_and_whole() -> None:
    base = torch.randn(10, 10)
    weight = torch.ones(1, requires_grad=True)
    assert bytes_for_backward(
        lambda: (weight * base[0]).sum() + (weight * base[1]).sum(), [weight]
    ) == (100 * 4)


def test_storages_that_came_and_went_are_told_apart() -> None:
    """Autograd holds nothing here, so that addresses are used again for other storages."""
    weight = torch.ones(1, requires_grad=True)

    def forward() -> None:
        for _ in range(5):
            (weight * torch.randn(1000)).sum()

    assert bytes_for_backward(forward, [weight]) == 5 * 1000 * 4
