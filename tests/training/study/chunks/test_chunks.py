"""`ttm study chunks`: the task by its definition, its limits, and the command."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ttm.training import cli
from ttm.training.sequence_model import SequenceModel
from ttm.training.study.chunks import (
    CHUNK,
    NUM_CHUNKS,
    StudyChunksCommand,
    limit,
    right_by_place,
    sequences,
)

QUICK = ["--width", "16", "--batch-size", "4", "--steps", "2"]
VANILLA, NO_VANILLA = "1@1 1@3 1@1", "0@1 1@3 0@1"


def study(*cores: str, **options: Any) -> StudyChunksCommand:
    return StudyChunksCommand(core=cores, width=16, batch_size=4, **options)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sequences_are_chunks_and_each_symbol_is_told_before_it_is_seen() -> None:
    seen, symbols = sequences(50, 4, generator())
    chunks = symbols.unflatten(1, (NUM_CHUNKS, CHUNK))
    assert torch.equal(chunks[..., 0], chunks[..., 2])
    assert (chunks[..., 1] == 4).all()
    assert set(chunks[..., 0].unique().tolist()) == {0, 1, 2, 3}
    assert torch.equal(seen[:, 1:], symbols[:, :-1])
    assert (seen[:, 0] == 5).all()


def test_other_seeds_give_other_sequences_and_the_same_seed_the_same() -> None:
    first, same, other = (sequences(4, 9, generator(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def best_share(letters: int, known: list[int], chunks: int = 3) -> float:
    """Return the accuracy of always predicting the most frequent next symbol.

    known: how many ticks back the symbols are that the prediction may depend on.

    Over all sequences of `chunks` chunks, at the ticks of those after the first.
    """
    counts: dict[tuple[int, ...], dict[int, int]] = {}
    for drawn in itertools.product(range(letters), repeat=chunks):
        symbols = [symbol for letter in drawn for symbol in (letter, letters, letter)]
        for tick in range(3, len(symbols)):
            key = tuple(symbols[tick - back] for back in known)
            told = counts.setdefault(key, {})
            told[symbols[tick]] = told.get(symbols[tick], 0) + 1
    return sum(max(told.values()) for told in counts.values()) / sum(
        sum(told.values()) for told in counts.values()
    )


@pytest.mark.parametrize("letters", [2, 4, 5])
def test_limits_are_what_the_commonest_next_symbol_reaches(letters: int) -> None:
    models = study("tlb", "none").models()
    with_memory, without = (limit(models[name], letters) or 0 for name in ("tlb", "none"))
    assert best_share(letters, known=[1, 2]) == pytest.approx(with_memory)
    first_chunk = 1 / NUM_CHUNKS / letters / 3  # its first symbol follows none, and is guessed
    assert best_share(letters, known=[1]) == pytest.approx(without - first_chunk)


@pytest.mark.parametrize("letters", [2, 4, 5])
def test_the_limit_without_vanilla_layers_is_that_of_groups_and_the_place_in_a_chunk(
    letters: int,
) -> None:
    """The prediction knows the newest symbol, the previous chunk, and the place in the chunk."""
    right, ticks = 0.0, 0
    for place in range(CHUNK):
        counts: dict[tuple[int, ...], dict[int, int]] = {}
        for old, new in itertools.product(range(letters), repeat=2):
            symbols = [old, letters, old, new, letters, new]
            told = counts.setdefault((symbols[CHUNK + place - 1], old), {})
            told[symbols[CHUNK + place]] = told.get(symbols[CHUNK + place], 0) + 1
        right += sum(max(told.values()) for told in counts.values())
        ticks += letters**2
    config = study("hourglass").models()[f"hourglass {NO_VANILLA}"]
    assert right / ticks == pytest.approx(limit(config, letters))


def test_accuracy_is_told_for_each_place_of_a_chunk() -> None:
    seen, symbols = sequences(3, 4, generator())

    class SaysMark(SequenceModel):
        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            scores = torch.zeros(*symbols.shape, 6)
            scores[..., 4] = 1
            return scores

    model = SaysMark(study("none").models()["none"], 6, 6, 16)
    assert right_by_place(model, seen, symbols).tolist() == [[0.0, 1.0, 0.0]] * 3


def test_models_and_their_limits() -> None:
    hierarchies = (VANILLA, NO_VANILLA, "0@1 1@2 0@1")
    models = study("hourglass", "none", "tlb", hierarchies=hierarchies).models()
    names = [f"hourglass {text}" for text in hierarchies] + ["none", "tlb"]
    assert list(models) == names
    two, groups, one = 0.75, 0.5, limit(models["none"], 4)
    assert [limit(config, 4) for config in models.values()] == [two, groups, None, one, two]
    repeating = study("hourglass", core_options=("upsampling=repeat",)).models()
    assert limit(repeating[f"hourglass {NO_VANILLA}"], 4) == one


@pytest.mark.parametrize("hierarchy", [VANILLA, NO_VANILLA])
def test_without_vanilla_layers_the_third_symbol_does_not_depend_on_the_first(
    hierarchy: str,
) -> None:
    """The result of the study follows from the construction of the network."""
    torch.manual_seed(0)
    config = study("hourglass").models()[f"hourglass {hierarchy}"]
    network = SequenceModel(config, 6, 6, 16)
    seen, _ = sequences(1, 4, generator())
    other = seen.clone()
    first = 2 * CHUNK + 1  # where the third chunk's first symbol is seen
    other[:, first] = (other[:, first] + 1) % 4
    scores, changed = network(seen)[:, first + 1], network(other)[:, first + 1]
    assert torch.equal(scores, changed) == (hierarchy == NO_VANILLA)


def test_a_layer_at_full_length_learns_what_none_cannot() -> None:
    linear = ("pooling=linear", "upsampling=linear")
    wider = replace(study("hourglass", core_options=linear, steps=100), width=32, batch_size=16)
    fast = replace(wider, learning_rate=5e-3)
    full, none = (fast.train(name, config, 2, 0) for name, config in fast.models().items())
    assert full["accuracy"] > 0.78
    assert full["by_place"][1] > 0.95
    assert full["by_place"][2] > 0.9
    assert none["accuracy"] < 0.68
    assert none["by_place"][2] < 0.6


def test_the_same_seed_trains_the_same() -> None:
    short = study("lstm", steps=2)
    found = [short.train("lstm", short.models()["lstm"], 4, seed) for seed in (0, 0, 1)]
    assert found[0]["by_place"] == found[1]["by_place"] != found[2]["by_place"]


def test_the_command_compares_models_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "chunks.json"
    options = ["--vocabularies", "4", "--seeds", "3", *QUICK, "--json", str(path)]
    assert cli.main(["study", "chunks", *options]) == 0
    printed = capsys.readouterr()
    for text in (
        "(2 + 1/V)/3",
        f"hourglass {VANILLA}",
        f"hourglass {NO_VANILLA}",
        "ttm",
        "0.750",
        "0.500",
    ):
        assert text in printed.out
    assert "V = 4, ttm, seed 3" in printed.err
    figures = json.loads(path.read_text())
    assert [row["letters"] for row in figures["results"]] == [4] * 3
    assert figures["models"][f"hourglass {NO_VANILLA}"]["hierarchy"] == NO_VANILLA


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocabularies", "1"], "--vocabularies is 1; give 2 or more"),
        (["--steps", "0"], "--steps is 0; give 1 or more"),
        (["--learning-rate", "0"], "--learning-rate is 0.0; give a number above 0"),
        (
            ["--hierarchies", "1@1 1@3"],
            "core hourglass: hierarchy '1@1 1@3' does not return by the way",
        ),
        (
            ["--core", "ttm", "--core-options", "chunk=3"],
            "core ttm: the core has no option 'chunk'",
        ),
    ],
)
def test_mistakes_are_told(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["study", "chunks", *options]) == 2
    assert message in capsys.readouterr().err
