"""`ttm study chunks`: why does Hourglass need vanilla layers around the layers that it shortens?

The task of Nawrot et al. 2021, appendix A.1. A sequence consists of chunks L#L, where L is one of V
letters, drawn for each chunk. The first symbol of a chunk can only be guessed (1 / V), the second is
always #, and the third repeats the first. If ticks are shortened in groups of three and no layer runs
at full length, the newest group ends with the previous chunk, and the third symbol is a guess, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.datasets.console import TitledTable
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import core_name, core_to_dict
from ttm.policy.errors import options, require_at_least, require_some
from ttm.training.console import compact_table, print_progress
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, study_core
from ttm.training.study.common import (
    HELD_OUT_SEED,
    SMALL_CORE,
    SymbolStudy,
    predicted,
    prepare_process,
    print_results,
    seeded,
)

CHUNK = 3  # symbols
NUM_CHUNKS = 6  # in a sequence; most of them have some before them
HELD_OUT = 1000  # sequences
EVALUATION_BATCH = 100

COMMON = {**SMALL_CORE, "window": 8}
OWN: dict[str, dict[str, Any]] = {"ttm": {"memory_size": 4, "process_size": 2}}
"""Sizes of single cores, beside those of `COMMON`."""

NOTES = """\
Chunks L#L of V letters. The model predicts each symbol from those before it.

  right   held-out symbols that are predicted, with half of the 95 % interval, and
  1 2 3   the same for the first, second and third symbol of a chunk.
  limit   the highest possible "right", except by luck: (2 + 1/V)/3 for a core that remembers two
          symbols; (1 + 2/V)/3 for a hierarchy that shortens by three without vanilla layers; less for
          one that does not know which symbol of a chunk comes next.
  s       seconds of training, {steps} steps on one CPU thread.
"""
COLUMNS = ("model", "V", "seed", "right", "±", "limit", "1", "2", "3", "s")


@dataclass(frozen=True)
class StudyChunksCommand(SymbolStudy):
    """Train memories to predict the next symbol of chunks L#L (the Hourglass paper's appendix A.1).

    Hourglass learns that the third symbol repeats the first if it has a layer at full length before
    and after the shortened ones; without them it cannot. Any other core that remembers two symbols
    can. Takes some minutes.
    """

    core: tuple[CoreName, ...] = ("hourglass", "ttm")
    """Cores to compare. Hourglass is trained once for each of --hierarchies."""
    hierarchies: tuple[str, ...] = ("1@1 1@3 1@1", "0@1 1@3 0@1")
    """Hierarchies of Hourglass, as layers@scale; each in quotes."""
    vocabularies: tuple[int, ...] = (2, 4, 26)
    """V, the number of letters."""
    steps: int = 600
    """Training steps of each model."""

    def check(self) -> None:
        super().check()
        require_some(options(self, "core", "hierarchies", "vocabularies"))
        require_at_least(1, options(self, "steps"))
        require_at_least(2, {"--vocabularies": min(self.vocabularies)})

    def run(self) -> int:
        """Train the models one after another, print the table, and return the exit code."""
        self.check()
        models = self.models()
        prepare_process()
        results = [
            self.train(name, config, letters, seed)
            for letters in self.vocabularies
            for name, config in models.items()
            for seed in self.seeds
        ]
        figures = {
            "models": {name: core_to_dict(config) for name, config in models.items()},
            "options": self.chosen("steps", "width", "batch_size", "learning_rate"),
            "results": results,
        }
        notes = NOTES.format(steps=self.steps)
        print_results(notes, chunk_table(results), figures=figures, json_path=self.json)
        return 0

    def models(self) -> dict[str, CoreConfig]:
        """Return name -> core: one for each core, and for Hourglass one for each hierarchy.

        Raises `UserError` for hierarchies or core options that do not fit.
        """
        models = {}
        for name in self.core:
            own = {name: OWN}
            if name == "hourglass":
                own = {f"{name} {h}": {name: {"hierarchy": h}} for h in self.hierarchies}
            for label, sizes in own.items():
                models[label] = study_core(name, COMMON, sizes, self.core_options)
        return models

    def train(self, name: str, config: CoreConfig, letters: int, seed: int) -> dict[str, Any]:
        """Train `config`, called `name`, on V = `letters`; return its result on held-out sequences."""
        torch.manual_seed(seed)
        symbols = letters + 2
        model = SequenceModel(config, symbols, symbols, self.width)
        source = seeded(seed)
        batches = (sequences(self.batch_size, letters, source) for _ in range(self.steps))
        *_, last = fit(model, batches, SequenceModel.loss, learning_rate=self.learning_rate)
        held_out = sequences(HELD_OUT, letters, seeded(HELD_OUT_SEED))
        right = right_by_place(model, *held_out)
        by_sequence = right.mean(dim=1)
        accuracy = by_sequence.mean().item()
        print_progress(f"V = {letters}, {name}, seed {seed}: {accuracy:.3f}, {last.seconds:.0f} s")
        return {
            "name": name,
            "letters": letters,
            "seed": seed,
            "parameters": model.num_parameters,
            "accuracy": accuracy,
            "deviation": by_sequence.std().item() / HELD_OUT**0.5,  # the standard error
            "by_place": right.mean(dim=0).tolist(),
            "limit": limit(config, letters),
            "seconds": last.seconds,
        }


def sequences(count: int, letters: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences of V + 2 symbols: the letters, #, and one before the first tick.

    Returns the inputs and the targets of each tick, both (B, T) int64. The input of a tick is the
    target of the tick before.
    """
    letter = torch.randint(letters, (count, NUM_CHUNKS), generator=generator)
    mark = torch.full_like(letter, letters)
    targets = torch.stack([letter, mark, letter], dim=2).flatten(1)
    return F.pad(targets[:, :-1], (1, 0), value=letters + 1), targets


def right_by_place(model: SequenceModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the accuracy on the first, second and third symbol of chunks, (B, 3) float64."""
    right = predicted(model, inputs, EVALUATION_BATCH) == targets
    return right.unflatten(1, (NUM_CHUNKS, CHUNK)).double().mean(dim=1)


def limit(config: CoreConfig, letters: int) -> float | None:
    """Return the highest accuracy that a core can reach with V letters; None if we do not know it."""
    # Without its place in the chunk a core predicts # after every letter, which is wrong for the first
    # symbol of every chunk except that of the sequence's first chunk.
    without_place = (1 + (1 + 1 / NUM_CHUNKS) / letters) / 3
    if core_name(config) == "none":
        return without_place
    with_two_ticks = (2 + 1 / letters) / 3
    if not isinstance(config, HourglassConfig):
        return with_two_ticks
    hierarchy = parse_hierarchy(config.hierarchy)
    if hierarchy.stages[0].num_layers:
        return with_two_ticks
    if not hierarchy.factors or hierarchy.factors[0] != CHUNK:
        return None
    # Upsampling other than by repeating has weights, or ages, for each tick of a group.
    return without_place if config.upsampling == "repeat" else (1 + 2 / letters) / 3


def chunk_table(results: Sequence[dict[str, Any]]) -> TitledTable:
    """Return a table with one row for each training."""
    rows = [
        [
            each["name"],
            each["letters"],
            each["seed"],
            f"{each['accuracy']:.3f}",
            f"{1.96 * each['deviation']:.3f}",
            "—" if each["limit"] is None else f"{each['limit']:.3f}",
            *(f"{portion:.2f}" for portion in each["by_place"]),
            f"{each['seconds']:.0f}",
        ]
        for each in results
    ]
    return compact_table("Chunks L#L: accuracy of the prediction", COLUMNS, rows)
