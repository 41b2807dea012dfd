"""`ttm bench flops`: the counts by hand are exact, and reproduce the papers' figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttm.policy import CoreConfig, TemporalCore
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.hourglass import HourglassConfig
from ttm.policy.cores.registry import CORES, CoreEntry, config_class, sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.training.bench import flops_counts as layers
from ttm.training.bench.common import Figures, counted_step
from ttm.training.bench.flops import (
    FEW,
    HIERARCHIES,
    MANY,
    MIXER,
    UNIT,
    WIDTH,
    BenchFlopsCommand,
    explanation,
    measure,
    measure_hierarchies,
    paper_tables,
)
from ttm.training.bench.flops_counts import COUNTS, element_by_hand, step_by_hand

RESULTS = Path(__file__).resolve().parents[3] / "training" / "bench" / "results"

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

COUNTED = [kind for kind in CORES if config_class(kind) in COUNTS]
"""The cores with a count by hand. A new core may have none."""

XLA_GFLOPS = {
    "transformer, few": (UNIT, FEW, 0.227922),
    "mixer, few": (MIXER, FEW, 0.089578056),
    "transformer": (UNIT, MANY, 0.844820736),
    "mixer": (MIXER, MANY, 0.706476672),
    "mlp": (replace(UNIT, processor="mlp"), MANY, 0.691878528),
    "mha": (replace(UNIT, summarizer="mha"), MANY, 8.54918912),
    "erase_add": (replace(UNIT, write="erase_add", initial_memory="learned"), MANY, 0.42663808),
}
"""Half of what `cost_analysis()` of jax 0.10.2 gives for the lowered step of the same modules in Flax."""


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


@pytest.mark.parametrize(
    "changes",
    [
        {"write": "gated"},
        {"write": "ring"},
        {"read": "attend", "write": "ring", "write_outputs": False},
        {"read": "attend"},
        {"read": "attend", "summarizer": "mha", "positional_embedding": False},
        {"process_memory": True},
        {"process_memory": True, "processor": "mixer", "write": "gated", "write_outputs": False},
    ],
    ids=str,
)
def test_hand_count_of_options_beyond_the_paper_is_exact(changes: dict[str, Any]) -> None:
    assert_exact(replace(SMALL, **changes), width=32, num_inputs=6)


@pytest.mark.parametrize("kind", COUNTED)
def test_hand_count_of_every_core_is_exact(kind: str) -> None:
    assert_exact(sized_like(kind, SMALL), width=32, num_inputs=6)


def test_every_entry_of_the_table_is_a_core() -> None:
    assert len(COUNTED) == len(COUNTS) >= 8


@pytest.mark.parametrize("name", XLA_GFLOPS)
def test_elementwise_work_is_counted_as_xla_counts_it(name: str) -> None:
    config, num_inputs, gflops = XLA_GFLOPS[name]
    step = step_by_hand(config, WIDTH, num_inputs)
    assert step is not None
    assert step.whole.total / 1e9 == pytest.approx(gflops, rel=1e-3)


def test_operations_add_up() -> None:
    one = layers.mlp(tokens=3, in_size=4, hidden_size=5, out_size=2)
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
    assert layers.pooled_summary(tokens=6, summaries=3, width=1).additions == 6 + 3
    assert layers.pooled_summary(tokens=5, summaries=3, width=1).additions == 2 + 3 + 2 + 3


def assert_exact(config: CoreConfig, width: int, num_inputs: int) -> None:
    step = step_by_hand(config, width, num_inputs)
    assert step is not None
    assert step.whole.matrix == counted_step(config, width, num_inputs).multiply_adds


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Figures]]:
    return {title: [measure(model) for model in models] for title, models in paper_tables().items()}


def test_hand_count_is_exact_in_all_rows_of_the_paper(tables: dict[str, list[Figures]]) -> None:
    for row in (row for rows in tables.values() for row in rows):
        assert row["matrix_multiply_adds"] == row["counter_multiply_adds"], row["name"]


def test_published_figures_within_two_percent(tables: dict[str, list[Figures]]) -> None:
    published = [row for rows in tables.values() for row in rows if row["paper_gflops"] is not None]
    assert len(published) == 12
    for row in published:
        assert row["total_to_paper"] == pytest.approx(1, rel=0.01), row["name"]
        assert row["matrix_to_paper"] == pytest.approx(1, rel=0.031), row["name"]


def test_tables_2_and_3_to_the_last_digit_with_6_operations_a_value_of_a_layer_norm() -> None:
    """The text that is printed below the tables claims this."""
    for models in list(paper_tables().values())[:2]:
        for model in (model for model in models if model.paper_gflops):
            step = step_by_hand(model.config, WIDTH, model.num_inputs)
            recurrent = model.name == "recurrent Transformer"
            counted = step.process if recurrent else step.whole
            gflops = (counted.total - counted.norms / 7 / 2) / 1e9
            assert round(gflops, 3) == model.paper_gflops


def test_every_row_without_a_published_figure_says_so(tables: dict[str, list[Figures]]) -> None:
    for row in (row for rows in tables.values() for row in rows):
        if row["paper_gflops"] is None:
            assert "not determined" in explanation(row)


def test_every_hierarchy_of_the_paper_has_its_cost() -> None:
    rows = measure_hierarchies(HourglassConfig(), width=64)
    assert {row["hierarchy"]: row["model"] for row in rows} == pytest.approx(
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
    assert all(row["element"] < row["tick"] for row in rows)
    # A layer of the model costs 12 D^2 if the MLP is 4 D wide. The linear map adds k D^2, and
    # attention adds 2 W D to each layer.
    few = measure_hierarchies(HourglassConfig(mlp_size=256, window=2), width=64)[0]
    layer = 12 * 64**2 + 4 * 64
    assert few["element"] == pytest.approx(4 + 1 + 1 + 1 / 4 + 4 * 64**2 / layer)


@pytest.mark.parametrize("hierarchy", ["2@1 4@4 2@1", "1@1 1@2 2@6 1@2 1@1", "3@1"])
def test_elements_of_a_long_sequence_are_counted_by_hand_as_they_run(hierarchy: str) -> None:
    """Attention itself is left out: it runs under a mask over more elements than it sees."""
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
    """Count the multiply-adds of the matrix products with weights."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for operation, flops in counts.items() if "bmm" not in str(operation)) // 2


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


def test_the_committed_page_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ttm bench flops > training/bench/results/flops.txt` brings it up to date."""
    monkeypatch.setenv("COLUMNS", "80")
    assert BenchFlopsCommand().run() == 0
    assert capsys.readouterr().out == (RESULTS / "flops.txt").read_text(encoding="utf-8")
