"""`ttm bench sequence`: counts are exact, and the compared models are alike. No test depends on time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import UserError
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.training.bench import sequence
from ttm.training.bench.sequence import (
    NUM_HEADS,
    PLAIN,
    BenchSequenceCommand,
    PlainTransformerConfig,
    Sizes,
    bytes_for_backward,
    contenders,
    kept_bytes,
    late_state,
    measure_cost,
)
from ttm.training.cli import main

SIZES = Sizes(width=16, ticks=12, batch=2, chunk_sizes=(4, 8), hierarchies=("2@1 4@4 2@1",))
FLOAT = 4
"""Bytes."""


@pytest.fixture(autouse=True)
def _few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"LAYERS": 2, "CROSS_EVERY": 2, "NUM_LATENTS": 3, "WINDOW": 4, "ROUNDS": 1}
    values |= {"TICK_BLOCKS": 1}
    for name, value in values.items():
        monkeypatch.setattr(sequence, name, value)


def test_kept_memory_of_a_layer_is_what_its_gradients_need() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    gains = torch.randn(3, 7)

    def forward() -> Tensor:
        hidden = layer(x)  # the gradients need its input and weight
        hidden = hidden.exp()  # its output
        return (
            hidden * hidden * gains
        ).sum()  # both factors, which are that output twice, their product, and gains

    kept = (3 * 5 + 5 * 7 + 3 * 7 + 3 * 7) * FLOAT
    assert bytes_for_backward(forward) == kept
    assert (
        bytes_for_backward(forward, besides=[*layer.parameters(), x])
        == kept - (3 * 5 + 5 * 7) * FLOAT
    )
    with torch.no_grad():
        assert bytes_for_backward(forward) == 0


def test_views_of_one_storage_count_once_and_whole() -> None:
    base = torch.randn(10, 10)
    weight = torch.ones(1, requires_grad=True)
    assert bytes_for_backward(
        lambda: (weight * base[0]).sum() + (weight * base[1]).sum(), [weight]
    ) == (100 * FLOAT)


def test_storages_that_came_and_went_are_told_apart() -> None:
    """Autograd holds nothing here, so that addresses are used again for other storages."""
    weight = torch.ones(1, requires_grad=True)

    def forward() -> None:
        for _ in range(5):
            (weight * torch.randn(1000)).sum()

    assert bytes_for_backward(forward, [weight]) == 5 * 1000 * FLOAT


def test_kept_memory_is_exact_and_grows_with_the_batch() -> None:
    for model in contenders(SIZES):
        core = model.config.build(SIZES.width, num_inputs=1)
        once = kept_bytes(core, SIZES)
        assert once == kept_bytes(core, SIZES) > 0
        assert 1.5 * once < kept_bytes(core, replace(SIZES, batch=4)) <= 2 * once


def test_scores_that_are_kept_grow_with_the_square_of_the_ticks() -> None:
    core = contenders(SIZES)[0].config.build(SIZES.width, num_inputs=1)
    short, long = (
        kept_bytes(core, replace(SIZES, ticks=ticks), with_scores=True) for ticks in (32, 64)
    )
    scores = SIZES.batch * NUM_HEADS * 2 * FLOAT  # of one query and key, in all heads and layers
    assert long - 2 * short >= scores * (64**2 - 2 * 32**2)  # all that grows evenly cancels out
    assert long > kept_bytes(core, replace(SIZES, ticks=64))


def test_the_plain_transformer_sees_everything_and_grows() -> None:
    config = PlainTransformerConfig(process_size=1, num_layers=1, num_heads=2, mlp_size=16)
    core, tokens = config.build(8, 3).double(), torch.randn(2, 30, 3, 8, dtype=torch.float64)
    outputs, state = core(tokens)
    stepped, now = [], core.initial_state(2)
    for tick in tokens.unbind(dim=1):
        output, now = core.step(tick, now)
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, dim=1), outputs, rtol=0, atol=1e-12)
    assert state["keys"].shape == (2, 1, 30, 8)
    other = tokens.clone()
    other[:, 0, :, 0] += 1  # not all channels alike, which a normalization takes out
    assert not torch.equal(core(other)[0][:, -1], outputs[:, -1])


def test_models_have_the_layers_that_the_table_says() -> None:
    plain, *chunked, hourglass = contenders(SIZES)
    assert [model.name for model in chunked] == ["TLB, K = 4", "TLB, K = 8"]
    assert (plain.name, plain.layers, plain.linear_cost) == (PLAIN, "2", 2)
    assert (hourglass.name, hourglass.layers, hourglass.linear_cost) == ("2@1 4@4 2@1", "8", 7)
    for size, model in zip((4, 8), chunked, strict=True):
        assert isinstance(model.config, TemporalLatentBottleneckConfig)
        core = model.config.build(16, num_inputs=1)
        assert (core.chunk_size, len(core.layers), len(core.crossings), model.layers) == (
            size,
            2,
            1,
            "2+1",
        )


def test_rows_say_what_is_carried_and_what_is_learned() -> None:
    models = contenders(SIZES)
    rows = {row["name"]: row for row in measure_cost(SIZES)}
    # Keys and values of 12 ticks in 2 layers of width 16, and which are valid.
    assert rows[PLAIN]["state_floats"] == 12 * 2 * 2 * 16 + 12
    # N D + 2 K D L + K D + 2 N D L / R, as the core's documentation has it.
    assert rows["TLB, K = 4"]["state_floats"] == 3 * 16 + 2 * 4 * 16 * 2 + 4 * 16 + 2 * 3 * 16
    for model in models:
        row, core = rows[model.name], model.config.build(SIZES.width, num_inputs=1)
        assert row["parameters"] == sum(parameter.numel() for parameter in core.parameters())
        assert row["train_ms"] > 0
        assert row["tick_ms"] > 0
        assert set(late_state(core, SIZES)) == set(core.initial_state(1))


def test_the_command_prints_the_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    nested = "1@1 1@2 1@4 1@2 1@1"
    cost = Sizes(16, 12, 1, chunk_sizes=(4,), hierarchies=("1@1 1@2 1@1", nested))
    values = {"COST": cost, "CROSS_EVERY": 1, "NUM_LATENTS": 2}
    for name, value in values.items():
        monkeypatch.setattr(sequence, name, value)
    path = tmp_path / "new" / "sequence.json"
    torch.set_num_threads(2)
    assert main(["bench", "sequence", "--json", str(path)]) == 0
    assert torch.get_num_threads() == 2
    printed = capsys.readouterr().out
    for text in (PLAIN, "TLB, K = 4", nested, "2+2", "12 ticks, batch 1"):
        assert text in printed
    figures = json.loads(path.read_text())
    assert [row["name"] for row in figures["cost"]] == [PLAIN, "TLB, K = 4", "1@1 1@2 1@1", nested]


def test_mistakes_are_refused() -> None:
    with pytest.raises(UserError, match="--threads is 0; give 1 or more"):
        BenchSequenceCommand(threads=0).run()
