"""`ttm study copy`: the task as the paper poses it, a memory that learns it, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from ttm.policy import CoreConfig
from ttm.policy.cores.registry import NAMES
from ttm.training import cli
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, study_core, ticks_seen
from ttm.training.study import copy as training
from ttm.training.study.copy import (
    COMMON,
    NUM_DIGITS,
    NUM_SYMBOLS,
    OWN,
    StudyCopyCommand,
    copy_accuracy,
    sequences,
)

QUICK = ["--width", "16", "--batch-size", "4", "--minutes", "0.0001"]
STUDY = StudyCopyCommand(width=16, batch_size=4, minutes=1e-8)


def copy_core(name: str, *options: str) -> CoreConfig:
    return study_core(name, COMMON, OWN, options)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sequences_are_the_papers() -> None:
    symbols, digits = sequences(50, 7, generator())
    assert symbols.shape == (50, 7 + 21)
    assert digits.shape == (50, 10)
    assert set(digits.unique().tolist()) == set(range(1, 9))
    assert torch.equal(symbols[:, :10], digits)
    assert (symbols[:, 10:17] == 0).all()
    assert (symbols[:, 17] == 9).all()
    assert (symbols[:, 18:] == 0).all()


def test_every_digit_is_asked_for_after_the_same_number_of_ticks() -> None:
    symbols, digits = sequences(3, 5, generator())
    asked = symbols.shape[1] - 10
    for place in range(10):
        assert torch.equal(symbols[:, asked + place - (5 + NUM_DIGITS + 1)], digits[:, place])


def test_the_last_output_falls_into_a_partial_chunk() -> None:
    """Carrying digits over the end of a chunk is thus a part of the task."""
    symbols, _ = sequences(2, 100, generator())
    core = copy_core("tlb").build(16, 1)
    _, state = core(torch.randn(*symbols.shape, 1, 16))
    assert state["phase"].tolist() == [1, 1]


def test_other_seeds_give_other_sequences_and_the_same_seed_the_same() -> None:
    first, same, other = (next(STUDY.batches(3, generator(seed)))[0] for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_gaps_that_vary_are_drawn_between_the_shortest_and_the_length() -> None:
    batches = replace(STUDY, shortest=4).batches(6, generator())
    lengths = [next(batches)[0].shape[1] - 21 for _ in range(60)]
    assert set(lengths) == {4, 5, 6}
    assert replace(STUDY, shortest=51).held_out_lengths(100) == [51, 76, 100]
    assert STUDY.held_out_lengths(7) == replace(STUDY, shortest=7).held_out_lengths(7) == [7]


def test_held_out_sequences_of_all_lengths_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps that vary, one length copied perfectly is not enough."""

    def accuracy(model: object, symbols: torch.Tensor, *rest: object) -> tuple[float, float]:
        return (1.0, 1.0) if symbols.shape[1] == 3 + 21 else (0.5, 0.2)

    monkeypatch.setattr(training, "copy_accuracy", accuracy)
    result = replace(STUDY, shortest=3).train("lstm", copy_core("lstm"), 5, 0)
    assert (result["digits"], result["sequences"]) == pytest.approx((2 / 3, 1.4 / 3))
    assert not result["perfect"]


def test_accuracy_counts_digits_and_whole_sequences() -> None:
    symbols, digits = sequences(4, 2, generator())
    said = digits.clone()
    said[0, 3] = said[0, 3] % 8 + 1
    said[2, :5] = said[2, :5] % 8 + 1

    class Says(SequenceModel):
        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            ahead = torch.zeros(2, symbols.shape[1] - 10, NUM_SYMBOLS)
            rows = [int((given[:10] == digits).all(dim=1).nonzero()) for given in symbols]
            return torch.cat(
                [ahead, torch.nn.functional.one_hot(said[rows], NUM_SYMBOLS).float()], dim=1
            )

    model = Says(copy_core("none"), NUM_SYMBOLS, NUM_SYMBOLS, 16)
    assert copy_accuracy(model, symbols, digits, batch_size=2) == (1 - 6 / 40, 0.5)


def test_a_bottleneck_learns_to_copy_over_chunks() -> None:
    """A small task, learned in seconds; only the latents carry digits over the end of a chunk."""
    torch.manual_seed(0)
    config = copy_core("tlb", "num_layers=1", "chunk_size=3", "num_latents=2", "mlp_size=32")
    model, (symbols, digits) = SequenceModel(config, 4, 4, 32), _short(200, generator(99))
    source = generator()
    batches = (_short(32, source) for _ in range(150))
    for _ in fit(model, batches, _short_loss, learning_rate=3e-3):
        pass
    right = model(symbols)[:, -2:].argmax(dim=2) == digits
    assert right.float().mean() > 0.95


def _short(count: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two digits of 1 to 3, five zeros."""
    digits = torch.randint(1, 4, (count, 2), generator=source)
    return torch.cat([digits, torch.zeros(count, 5, dtype=torch.int64)], dim=1), digits


def _short_loss(model: SequenceModel, symbols: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(symbols)[:, -2:].flatten(0, 1), digits.flatten())


@pytest.mark.parametrize("name", get_args(CoreName))
def test_every_core_takes_the_task_and_what_it_sees_is_measured(name: CoreName) -> None:
    assert name in NAMES
    torch.manual_seed(0)
    config = copy_core(name)
    model = SequenceModel(config, NUM_SYMBOLS, NUM_SYMBOLS, 16)
    symbols, digits = sequences(2, 12, generator())
    SequenceModel.loss(model, symbols, digits).backward()
    assert model.embedding.weight.grad is not None
    seen = {"none": 0, "frame-stacking": 9, "mixer": 9, "transformer": 18}
    assert ticks_seen(model, symbols[:1]) == seen.get(name, 32)


def test_a_training_whose_time_is_up_reports_what_it_has() -> None:
    result = STUDY.train("lstm", copy_core("lstm"), 3, 0)
    assert (result["samples"], result["blanks"], result["ticks_seen"]) == (4, 3, 23)
    assert not result["perfect"]
    assert 0 <= result["digits"] < 0.5


def test_the_same_seed_trains_the_same() -> None:
    losses = [STUDY.train("tlb", copy_core("tlb"), 3, seed)["loss"] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_the_table_says_what_is_not_perfect_and_never_rounds_up() -> None:
    result = STUDY.train("tlb", copy_core("tlb"), 3, 0)
    near = result | {"digits": 0.99999, "sequences": 0.9999, "samples": 11200}
    all_right = near | {"digits": 1.0, "sequences": 1.0, "perfect": True, "blanks": 100}
    rows = STUDY.table([near, all_right]).columns
    cells = {str(column.header).split("\n")[0]: list(column.cells) for column in rows}
    assert cells["digits"] == ["99.9", "100.0"]
    assert cells["whole"] == ["99.9", "100.0"]
    assert cells["samples"] == [">11,200", "11,200"]


def test_the_command_compares_cores_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "copy.json"
    options = ["--core", "tlb", "none", "--lengths", "3", "5", *QUICK, "--json", str(path)]
    assert cli.main(["study", "copy", *options]) == 0
    printed = capsys.readouterr()
    for text in ("1 of 8 digits", "Copying after T ticks, from fresh sequences", "tlb", "none"):
        assert text in printed.out
    assert "tlb, T = 3, seed 0: 4 samples" in printed.err
    figures = json.loads(path.read_text())
    assert [(row["core"], row["blanks"]) for row in figures["results"]] == [
        (core, blanks) for core in ("tlb", "none") for blanks in (3, 5)
    ]
    assert figures["cores"]["tlb"]["chunk_size"] == 10


def test_the_table_and_the_figures_name_the_shortest_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy.json"
    options = ["--core", "lstm", "--lengths", "5", "--shortest", "3", *QUICK, "--json", str(path)]
    assert cli.main(["study", "copy", *options]) == 0
    assert "Copying after 3 to T ticks, from fresh sequences" in capsys.readouterr().out
    assert json.loads(path.read_text())["options"]["shortest"] == 3


def test_unique_samples_and_core_options_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy.json"
    options = [
        "--core",
        "tlb",
        "--lengths",
        "3",
        "--unique",
        "6",
        "--core-options",
        "chunk_size=7",
        *QUICK,
    ]
    assert cli.main(["study", "copy", *options, "--json", str(path)]) == 0
    assert "from 6 unique, repeated sequences" in capsys.readouterr().out
    assert json.loads(path.read_text())["cores"]["tlb"]["chunk_size"] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "100", "0"], "--lengths is 0; give 1 or more"),
        (["--minutes", "0"], "--minutes is 0.0; give a number above 0"),
        (["--batch-size", "0"], "--batch-size is 0; give 1 or more"),
        (["--unique", "0"], "--unique is 0; give 1 or more"),
        (["--shortest", "0"], "--shortest is 0; give 1 or more"),
        (["--shortest", "200"], "--shortest is 200; give 100 or less"),
        (["--shortest", "9", "--unique", "5"], "--shortest draws new sequences for every batch"),
        (
            ["--core", "lstm", "--core-options", "window=3"],
            "core lstm: the core has no option 'window'",
        ),
        (
            ["--core-options", "num_layers=many"],
            "core tlb: core option num_layers is 'many'; give a number",
        ),
    ],
)
def test_mistakes_are_told(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["study", "copy", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_loss_is_of_the_last_ten_outputs() -> None:
    symbols, digits = sequences(3, 4, generator())
    scores = torch.zeros(*symbols.shape, NUM_SYMBOLS)
    scores[:, -NUM_DIGITS:] = 100.0 * functional.one_hot(digits, NUM_SYMBOLS)

    class Right(nn.Module):
        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            return scores

    assert SequenceModel.loss(Right(), symbols, digits) < 1e-6  # type: ignore[arg-type]
