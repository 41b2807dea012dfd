"""`ttm bench flops`: the counts by hand are exact, and reproduce the published figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.recurrent_transformer import RecurrentTransformerConfig
from ttm.policy.cores.registry import CORES, sized_like
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.training.bench.flops import operations as ops
from ttm.training.bench.flops.command import BenchFlopsCommand
from ttm.training.bench.flops.counting import counted_step
from ttm.training.bench.flops.hand_counts import COUNTS, step_by_hand
from ttm.training.bench.flops.hierarchy_costs import (
    HIERARCHIES,
    element_by_hand,
    measure_hierarchies,
)
from ttm.training.bench.flops.report import Measured, explanation, measure_tables
from ttm.training.bench.flops.ttm_tables import FEW, MANY, MIXER, UNIT, WIDTH

SMALL = TokenTuringConfig(
    memory_size=5,
    process_size=3,
    num_layers=2,
    num_heads=4,
    mlp_size=48,
    bottleneck=7,
    token_mixing_size=11,
    initial_memory="learned",
)

XLA_GFLOPS = {
    "transformer, few": (UNIT, FEW, 0.227922),
    "mixer, few": (MIXER, FEW, 0.089578056),
    "transformer": (UNIT, MANY, 0.844820736),
    "mixer": (MIXER, MANY, 0.706476672),
    "mlp": (replace(UNIT, processor="mlp"), MANY, 0.691878528),
    "mha": (replace(UNIT, summarizer="mha"), MANY, 8.54918912),
    "erase_add": (replace(UNIT, write="erase_add", initial_memory="learned"), MANY, 0.42663808),
}
"""Half of what `cost_analysis()` of jax 0.10.2 gives for the lowered step of the same modules written in Flax."""


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Measured]]:
    return dict(measure_tables())


@pytest.mark.parametrize(
    ("summarizer", "processor", "write"),
    [
        *product(
            ("mlp", "mha", "query", "pooling"),
            ("transformer", "mixer", "mlp"),
            ("summarize", "erase_add", "concatenate"),
        )
    ],
)
def test_hand_count_of_every_variant_is_exact(summarizer: str, processor: str, write: str) -> None:
    config = replace(SMALL, summarizer=summarizer, processor=processor, write=write)
    assert_exact(config, width=32, num_inputs=6)


@pytest.mark.parametrize("kind", CORES)
def test_hand_count_of_every_core_is_exact(kind: str) -> None:
    assert_exact(sized_like(kind, SMALL), width=32, num_inputs=6)


@pytest.mark.parametrize("kind", CORES)
def test_every_core_has_a_hand_count(kind: str) -> None:
    assert CORES[kind] in COUNTS


def test_hand_count_is_exact_in_all_rows_of_the_paper(tables: dict[str, list[Measured]]) -> None:
    for rows in tables.values():
        for measured in rows:
            assert measured.by_hand.whole.matrix == measured.counted.multiply_adds, (
                measured.row.name
            )


def test_published_figures_within_two_percent(tables: dict[str, list[Measured]]) -> None:
    published = [m for rows in tables.values() for m in rows if m.row.paper_gflops is not None]
    assert len(published) == 12
    for measured in published:
        assert measured.gflops == pytest.approx(measured.row.paper_gflops, rel=0.01), (
            measured.row.name
        )
        assert measured.matrix_gflops == pytest.approx(measured.row.paper_gflops, rel=0.031)


def test_tables_2_and_3_to_the_last_digit_with_6_operations_a_value_of_a_layer_norm(
    tables: dict[str, list[Measured]],
) -> None:
    """The text below the tables says so."""
    for measured in (m for title in list(tables)[:2] for m in tables[title] if m.row.paper_gflops):
        step = measured.by_hand
        counted = (
            step.process
            if isinstance(measured.row.config, RecurrentTransformerConfig)
            else step.whole
        )
        assert round((counted.total - counted.norms / 7 / 2) / 1e9, 3) == measured.row.paper_gflops


@pytest.mark.parametrize("name", XLA_GFLOPS)
def test_elementwise_work_is_counted_as_xla_counts_it(name: str) -> None:
    config, num_inputs, gflops = XLA_GFLOPS[name]
    assert step_by_hand(config, WIDTH, num_inputs).whole.total / 1e9 == pytest.approx(
        gflops, rel=1e-3
    )


def test_every_row_without_a_published_figure_says_so(tables: dict[str, list[Measured]]) -> None:
    for rows in tables.values():
        for measured in rows:
            if measured.row.paper_gflops is None:
                assert "not determined" in explanation(measured)


def test_operations_add_up() -> None:
    one = ops.mlp(tokens=3, in_size=4, hidden_size=5, out_size=2)
    assert asdict(one) == {
        "matrix": 3 * 4 * 5 + 3 * 5 * 2,
        "norms": 0,
        "activations": 8 * 3 * 5,
        "softmaxes": 0,
        "additions": 3 * 5 + 3 * 2,
    }
    assert (one + one) == one * 2
    assert one.total == 90 + (120 + 21) / 2


def test_pooled_runs_overlap_where_they_do_not_divide() -> None:
    assert ops.pooled_summary(tokens=6, summaries=3, width=1).additions == 6 + 3
    assert ops.pooled_summary(tokens=5, summaries=3, width=1).additions == 2 + 3 + 2 + 3


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


def assert_exact(config: CoreConfig, width: int, num_inputs: int) -> None:
    counted = counted_step(config, width, num_inputs).multiply_adds
    assert step_by_hand(config, width, num_inputs).whole.matrix == counted


def test_every_hierarchy_of_the_paper_has_its_cost() -> None:
    rows = measure_hierarchies(HourglassConfig(), width=64)
    assert {row.hierarchy: row.model for row in rows} == pytest.approx(
        {
            "2@1 4@4 2@1": 7,
            "2@1 8@4 2@1": 8,
            "3@1 8@4 3@1": 10,
            "4@1 8@4 4@1": 12,
            "2@1 1@3 2@1": 19 / 3,
            "2@1 4@3 2@1": 22 / 3,
            "2@1 8@3 2@1": 26 / 3,
            "2@1 16@3 2@1": 34 / 3,
            "2@1 1@2 4@4 1@2 2@1": 9,
            "5@1 8@2 5@1": 16,
            "5@1 24@3 5@1": 20,
            "3@1 24@3 3@1": 16,
        }
    )
    assert all(row.element < row.tick for row in rows)
    # A layer of the model is 12 D^2 where the MLP is 4 D wide; the linear map adds k D^2, attention 2 W D to each.
    few = measure_hierarchies(HourglassConfig(mlp_size=256, window=2), width=64)[0]
    layer = 12 * 64**2 + 4 * 64
    assert few.element == pytest.approx(4 + 1 + 1 + 1 / 4 + 4 * 64**2 / layer)


@pytest.mark.parametrize("hierarchy", ["2@1 4@4 2@1", "1@1 1@2 2@6 1@2 1@1", "3@1"])
def test_elements_of_a_long_sequence_are_counted_by_hand_as_they_run(hierarchy: str) -> None:
    """But for attention itself, which runs under a mask over more than it sees."""
    width, ticks = 32, 24

    def by_hand(window: int) -> Fraction:
        return element_by_hand(replace(config, window=window), width)

    config = HourglassConfig(
        hierarchy=hierarchy,
        process_size=1,
        num_heads=2,
        mlp_size=48,
        bottleneck=5,
        position="rotary",
    )
    with torch.device("meta"), torch.no_grad():
        core, tokens = config.build(width, 1), torch.zeros(1, ticks, 1, width)
        whole = linear_layers(lambda: core(tokens)) - linear_layers(lambda: core.read_all(tokens))
    without_attention = 2 * by_hand(2) - by_hand(
        4
    )  # the cost grows evenly with what attention sees
    assert whole == ticks * without_attention


def linear_layers(call: Callable[[], object]) -> int:
    """Multiply-adds of the matrix products with weights."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for operation, flops in counts.items() if "bmm" not in str(operation)) // 2
