"""`ttm bench flops`: the counts are exact, and reproduce the papers' figures."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import CoreConfig, TemporalCore
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import CORES, CoreEntry
from ttm.training.bench import flops
from ttm.training.bench.common import ELEMENTWISE, aten, counted_flops, counted_step
from ttm.training.bench.flops import FEW, MANY, MIXER, UNIT, WIDTH, BenchFlopsCommand, paper_tables

RESULTS = Path(__file__).resolve().parents[3] / "training" / "bench" / "results"

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


@pytest.mark.parametrize("name", XLA_GFLOPS)
def test_elementwise_work_is_counted_as_xla_counts_it(name: str) -> None:
    config, num_inputs, gflops = XLA_GFLOPS[name]
    counted = counted_step(config, WIDTH, num_inputs).operations
    assert counted / 1e9 == pytest.approx(gflops, rel=1e-3)


def test_operations_add_up() -> None:
    """Two rows of 4 values through a norm, a linear layer to 5, gelu, and softmax."""
    layers = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), nn.GELU(), nn.Softmax(dim=-1))
    counts = counted_flops(lambda: layers(torch.zeros(2, 4)), ELEMENTWISE)
    assert counts == {
        aten.native_layer_norm: 7 * 8,
        aten.addmm: 2 * 8 * 5 + 10,
        aten.gelu: 8 * 10,
        aten._softmax: 4 * 10,
    }
    assert counted_flops(lambda: layers(torch.zeros(2, 4))) == {aten.addmm: 2 * 8 * 5}


def test_tables_2_and_3_to_the_last_digit_with_6_operations_a_value_of_a_layer_norm() -> None:
    """The text that is printed below the tables claims this."""
    for models in list(paper_tables().values())[:2]:
        for model in (m for m in models if m.paper_gflops and m.name != "recurrent Transformer"):
            core = model.config.build(WIDTH, model.num_inputs).eval()
            tokens, state = torch.zeros(1, model.num_inputs, WIDTH), core.initial_state(1)
            with torch.no_grad():
                counts = counted_flops(partial(core.step, tokens, state), ELEMENTWISE)
            operations = sum(counts.values()) - counts[aten.native_layer_norm] / 7
            assert round(operations / 2e9, 3) == model.paper_gflops


@torch.no_grad()
def layers_at_full_length(sizes: HourglassConfig, hierarchy: str, *, each_tick: bool) -> float:
    """Return the cost of an element by its products with weights, in layers; each_tick: of a control tick.

    As in the cost model, an element has one token, and attention resamples.
    """

    def products(hierarchy: str, ticks: int) -> float:
        resampled = replace(sizes, pooling="attention", upsampling="attention", position="rotary")
        config = replace(resampled, hierarchy=hierarchy, process_size=1)
        core, tokens = config.build(64, 1), torch.zeros(1, ticks, 1, 64)
        whole, read = (counted_flops(partial(f, tokens)) for f in (core, core.read_all))
        return sum(whole.get(op, 0) - read.get(op, 0) for op in (aten.mm, aten.addmm)) / ticks

    ticks = 1 if each_tick else parse_hierarchy(hierarchy).period
    return products(hierarchy, ticks) / products("1@1", 1)


def test_hourglass_costs_what_its_paper_says() -> None:
    """Nawrot et al. 2021: a layer at scale k costs 1 / k, a change of scale one layer of its finer side.

    Ours costs one layer at each of both scales. A control tick computes every scale.
    """
    # A layer has 12 D^2 products if the MLP is 4 D wide. The linear map adds k D^2.
    sizes, text = HourglassConfig(mlp_size=256), "2@1 4@4 2@1"
    element = layers_at_full_length(sizes, text, each_tick=False)
    assert element == pytest.approx(4 + 1 + 1 + 1 / 4 + 4 / 12)
    tick = layers_at_full_length(sizes, text, each_tick=True)
    assert tick == pytest.approx(4 + 1 + 1 + 4 + 4 / 12)


def test_the_committed_page_is_what_the_command_prints_and_its_figures_are_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ttm bench flops > training/bench/results/flops.txt` brings it up to date."""
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "new" / "flops.json"
    assert BenchFlopsCommand(json=path).run() == 0
    page = (RESULTS / "flops.txt").read_text(encoding="utf-8")
    printed, _, told = capsys.readouterr().out.rpartition("figures: ")
    assert (printed, "".join(told.split())) == (page, str(path))
    figures = json.loads(path.read_text())
    assert [row["name"] for row in figures["cores"]] == list(CORES)
    rows = [row for table in figures["tables"] for row in table["rows"]]
    assert all(row["multiply_adds"] < row["operations"] for row in rows)
    published = [row for row in rows if row["paper_gflops"] is not None]
    assert len(published) == 12
    for row in published:
        assert row["all_to_paper"] == pytest.approx(1, rel=0.01), row["name"]
        assert row["matrix_to_paper"] == pytest.approx(1, rel=0.031), row["name"]


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


def test_a_new_core_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core consists of its module and its line in the registry alone."""
    module = ModuleType("ttm.policy.cores.example")
    module.ExampleConfig = ExampleConfig  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = CoreEntry(f"{module.__name__}:ExampleConfig", "an example")
    monkeypatch.setattr(registry, "CORES", {**CORES, "example": entry})
    monkeypatch.setattr(registry, "NAMES", (*registry.NAMES, "example"))
    monkeypatch.setattr(flops, "paper_tables", dict)
    assert BenchFlopsCommand(json=tmp_path / "flops.json").run() == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "example" in line)
    parameters, tokens, width = 128 * 128 + 128, 17, 128
    assert line.split() == ["example", "0.28", "0.28", f"{parameters:,}", "128"]
    row = json.loads((tmp_path / "flops.json").read_text())["cores"][-1]
    assert row["multiply_adds"] == tokens * width * width
    assert row["operations"] == tokens * (width * width + width // 2)
