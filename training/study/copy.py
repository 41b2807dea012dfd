"""`ttm study copy`: which memory can copy ten digits over hundreds of ticks?

The copying task (Hochreiter & Schmidhuber 1997) as in the TLB paper (Didolkar et al. 2022). A
sequence has T + 21 symbols: ten digits from 1 to 8, T zeros, a 9, and ten zeros. At the last ten
symbols the model has to repeat the digits, so it must keep each of them for T + 11 ticks. By chance
1 of 8 digits is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ttm.datasets.console import TitledTable
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_to_dict
from ttm.policy.errors import (
    UserError,
    options,
    require_above_0,
    require_at_least,
    require_at_most,
    require_some,
)
from ttm.training.console import compact_table, print_progress
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, repeated, study_core, ticks_seen, within
from ttm.training.study.common import (
    HELD_OUT_SEED,
    SMALL_CORE,
    SymbolStudy,
    predicted,
    prepare_process,
    print_results,
    seeded,
)

NUM_DIGITS = 10  # to copy
BLANK, LARGEST, GO = 0, 8, 9  # an empty tick, the largest digit, the signal to repeat the digits
NUM_SYMBOLS = 10
HELD_OUT = 200  # sequences of each length
EVALUATE_EVERY = 50  # steps

COMMON = {**SMALL_CORE, "window": NUM_DIGITS}  # as long as the chunk of tlb
OWN: dict[str, dict[str, Any]] = {
    "tlb": {"num_latents": NUM_DIGITS, "chunk_size": NUM_DIGITS, "cross_every": 1},
    "hourglass": {"hierarchy": "1@1 2@4 1@1"},
    "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
}
"""Sizes of single cores, beside those of `COMMON`."""

NOTES = f"""\
Copying: {NUM_DIGITS} digits from 1 to 8, T zeros, a 9, {NUM_DIGITS} zeros, at which the digits are to be
repeated. By chance 1 of 8 digits is right (12.5 %), and no sequence.

  size       thousands of weights.
  sees       how many ticks back the last output depends on, by its gradient before training;
             "all": to the first. The task needs T + {NUM_DIGITS + 1}. A core that sees less can only guess.
  digits     held-out digits that are right, and
  whole      held-out sequences without an error, when all were right or the time was up.
  samples    sequences presented until then; ">" where not all were right. In the TLB paper (Didolkar
             et al. 2022) tlb needs 6,200 unique ones at T = 100.
  s          seconds with evaluations, at most {{minutes:g}} minutes, on one CPU thread.
"""
COLUMNS = ("core", "size", "T", "seed", "sees", "digits\n%", "whole\n%", "samples", "s")


@dataclass(frozen=True)
class StudyCopyCommand(SymbolStudy):
    """Train memories to repeat ten digits after T ticks of nothing (the TLB paper's copying task).

    A training ends when all held-out sequences, 200 of each length, are right from the first digit
    to the last, or when its time is up. With the defaults it may take most of an hour until the
    table is printed; with --core tlb --lengths 100 it takes one or two minutes.
    """

    core: tuple[CoreName, ...] = ("tlb", "ttm")
    """Cores to compare."""
    lengths: tuple[int, ...] = (100, 200, 300)
    """T, the number of ticks between the digits and the signal to repeat them."""
    shortest: int | None = None
    """Draw T again for each batch, from this number to the length, so that the lag from a digit to its
    repetition varies. The held-out sequences are then of three lengths. None: all have the same T."""
    minutes: float = 10.0
    """Longest time for one training."""
    unique: int | None = None
    """Sequences to train on again and again (paper: 6200 at T = 100); None for new ones."""

    def check(self) -> None:
        super().check()
        require_some(options(self, "core", "lengths"))
        require_at_least(1, {"--lengths": min(self.lengths), **options(self, "unique", "shortest")})
        require_above_0(options(self, "minutes"))
        require_at_most(min(self.lengths), options(self, "shortest"))
        if self.shortest is not None and self.unique is not None:
            raise UserError("--shortest draws new sequences for every batch; leave out --unique")

    def run(self) -> int:
        """Train the cores one after another, print the table, and return the exit code."""
        self.check()
        configs = {name: study_core(name, COMMON, OWN, self.core_options) for name in self.core}
        prepare_process()
        results = [
            self.train(name, config, blanks, seed)
            for name, config in configs.items()
            for blanks in self.lengths
            for seed in self.seeds
        ]
        chosen = self.chosen("width", "batch_size", "learning_rate", "unique", "shortest")
        figures = {
            "cores": {name: core_to_dict(config) for name, config in configs.items()},
            "options": {**chosen, "seconds": 60 * self.minutes},
            "results": results,
        }
        notes = NOTES.format(minutes=self.minutes)
        print_results(notes, self.table(results), figures=figures, json_path=self.json)
        return 0

    def train(self, core: str, config: CoreConfig, blanks: int, seed: int) -> dict[str, Any]:
        """Train `config`, called `core`, at T = `blanks`; return its last evaluation."""
        torch.manual_seed(seed)
        model = SequenceModel(config, NUM_SYMBOLS, NUM_SYMBOLS, self.width)
        lengths = self.held_out_lengths(blanks)
        held_out = [sequences(HELD_OUT, length, seeded(HELD_OUT_SEED)) for length in lengths]
        result = {
            "core": core,
            "parameters": model.num_parameters,
            "blanks": blanks,
            "seed": seed,
            "ticks_seen": ticks_seen(model, held_out[-1][0][:1]),
        }
        batches = within(self.batches(blanks, seeded(seed)), 60 * self.minutes)
        begun = time.perf_counter()
        loss, rate = SequenceModel.loss, self.learning_rate
        fitting = fit(model, batches, loss, learning_rate=rate, report_every=EVALUATE_EVERY)
        for progress in fitting:
            right = [copy_accuracy(model, *part, self.batch_size) for part in held_out]
            digits, whole = (sum(portions) / len(right) for portions in zip(*right, strict=True))
            result |= {
                "samples": progress.steps * self.batch_size,
                "loss": progress.loss,
                "digits": digits,
                "sequences": whole,
                "seconds": time.perf_counter() - begun,
                "perfect": whole == 1,
            }
            print_progress(
                f"{core}, T = {blanks}, seed {seed}: {result['samples']} samples, "
                f"loss {progress.loss:.3f}, digits {_percent(digits)} %, "
                f"sequences {_percent(whole)} %, {result['seconds']:.0f} s"
            )
            if whole == 1:
                break
        return result

    def held_out_lengths(self, blanks: int) -> list[int]:
        """Return T alone, or the shortest T of training, the mean of the two (rounded up), and T."""
        shortest = self.shortest or blanks
        return sorted({shortest, (shortest + blanks + 1) // 2, blanks})

    def batches(self, blanks: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches without end, of T = `blanks` or less; see `sequences`."""
        if self.unique is not None:
            fixed = sequences(self.unique, blanks, generator)
            yield from repeated(fixed, self.batch_size, generator)
        while True:
            drawn = torch.tensor(blanks)
            if self.shortest is not None:
                drawn = torch.randint(self.shortest, blanks + 1, (), generator=generator)
            yield sequences(self.batch_size, int(drawn), generator)

    def table(self, results: Sequence[dict[str, Any]]) -> TitledTable:
        """Return a table with one row for each training; see `train`."""
        kind = "fresh" if self.unique is None else f"{self.unique:,} unique, repeated"
        ticks = "T" if self.shortest is None else f"{self.shortest} to T"
        rows = [
            [
                each["core"],
                f"{each['parameters'] / 1000:.0f}",
                each["blanks"],
                each["seed"],
                "all"
                if each["ticks_seen"] >= each["blanks"] + 2 * NUM_DIGITS
                else each["ticks_seen"],
                _percent(each["digits"]),
                _percent(each["sequences"]),
                f"{'' if each['perfect'] else '>'}{each['samples']:,}",
                f"{each['seconds']:.0f}",
            ]
            for each in results
        ]
        title = f"Copying after {ticks} ticks, from {kind} sequences"
        return compact_table(title, COLUMNS, rows)


def sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences with T = `blanks`.

    Returns the symbols (B, T + 21) and the digits to repeat (B, 10), both int64.
    """
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    symbols = digits.new_full((count, 2 * NUM_DIGITS + blanks + 1), BLANK)
    symbols[:, :NUM_DIGITS] = digits
    symbols[:, NUM_DIGITS + blanks] = GO
    return symbols, digits


def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Return the portions of digits and of whole sequences that the model repeats correctly."""
    right = predicted(model, symbols, batch_size)[:, -NUM_DIGITS:] == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()


def _percent(portion: float) -> str:
    """Format a portion in percent, rounded down: it is 100.0 only if nothing is missing."""
    return f"{int(portion * 1000) / 10:.1f}"
