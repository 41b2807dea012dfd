"""Runs `ttm study copy`: trains every core at every length with every seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_to_dict
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.training.console import compact_table, print_progress
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, repeated, study_core, ticks_seen, within
from ttm.training.study.common import SMALL_CORE, SymbolStudyOptions, prepare_process, print_results

# The options of `ttm study copy`, and their checks.


@dataclass(frozen=True)
class CopyOptions(SymbolStudyOptions):
    """What `ttm study copy` asks; its defaults take most of an hour."""

    core: tuple[CoreName, ...] = ("tlb", "ttm")
    """Cores to compare."""
    lengths: tuple[int, ...] = (100, 200, 300)
    """T, the number of ticks between the digits and the signal to repeat them."""
    shortest: int | None = None
    """Draw T anew for each batch, from this number to the length, so that the lag from a digit to its
    repetition varies. The held-out sequences are then of three lengths. None: all have the same T."""
    minutes: float = 10.0
    """Longest time for one training."""
    unique: int | None = None
    """Sequences to train on again and again (paper: 6200 at T = 100); None for new ones."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        super().check()
        require_some(options(self, "core", "lengths"))
        require_at_least(1, options(self, "unique", "shortest"))
        require_above_0(options(self, "minutes"))
        if min(self.lengths) < 1:
            raise UserError(f"--lengths has {min(self.lengths)}; give numbers of ticks, 1 or more")
        if self.shortest is not None:
            self._check_shortest(self.shortest)

    def _check_shortest(self, shortest: int) -> None:
        if shortest > min(self.lengths):
            raise UserError(
                f"--shortest is {shortest}, but --lengths has {min(self.lengths)}; give the same or less"
            )
        if self.unique is not None:
            raise UserError("--shortest draws new sequences for every batch; leave out --unique")

    @property
    def seconds(self) -> float:
        """Longest time for one training, evaluations included."""
        return 60 * self.minutes


# `ttm study copy`: which memory can copy ten digits over hundreds of ticks?


@dataclass(frozen=True)
class StudyCopyCommand(CopyOptions):
    """Train memories to repeat ten digits after T ticks of nothing (the TLB paper's copying task).

    A training ends when all held-out sequences, 200 of each length, are right from the first digit
    to the last, or when its time is up. With the defaults it may take most of an hour until the
    table is printed; with --core tlb --lengths 100 it takes one or two minutes.
    """

    def run(self) -> int:
        """Train the cores one after another, print the table, and return the exit code."""
        self.check()

        return run(self)


# The copying task (Hochreiter & Schmidhuber 1997) as in the TLB paper (Didolkar et al. 2022).
#
# A sequence has T + 21 symbols: ten digits from 1 to 8, T zeros, a 9, and ten zeros. At the last ten
# symbols the model has to repeat the digits, so it must keep each of them for T + 11 ticks. By chance
# 1 of 8 digits is right.

NUM_DIGITS = 10
"""Number of digits to copy."""
BLANK, LARGEST, GO = 0, 8, 9
"""The symbol of an empty tick, the largest digit, and the signal to repeat the digits."""
NUM_SYMBOLS = 10
"""Zero, the eight digits, and the signal."""


def lag(blanks: int) -> int:
    """Return the number of ticks from a digit to its repetition, for T = `blanks`."""
    return blanks + NUM_DIGITS + 1


def sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences with T = `blanks`.

    Returns the symbols (B, T + 21) and the digits to repeat (B, 10), both int64.
    """
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    waiting = digits.new_full((count, blanks), BLANK)
    go = digits.new_full((count, 1), GO)
    repeating = digits.new_full((count, NUM_DIGITS), BLANK)
    return torch.cat([digits, waiting, go, repeating], dim=1), digits


def fresh_batches(
    batch_size: int, blanks: int, generator: torch.Generator, shortest: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of new sequences without end; see `sequences`.

    shortest: each batch has its own T, drawn from `shortest` to `blanks`. None: T is `blanks`.
    """
    while True:
        drawn = blanks
        if shortest is not None:
            drawn = int(torch.randint(shortest, blanks + 1, (), generator=generator))
        yield sequences(batch_size, drawn, generator)


def copy_loss(model: SequenceModel, symbols: Tensor, digits: Tensor) -> Tensor:
    """Return the cross-entropy of the last ten outputs, a scalar."""
    return F.cross_entropy(model(symbols)[:, -NUM_DIGITS:].flatten(0, 1), digits.flatten())


@torch.no_grad()
def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Return the portions of digits and of whole sequences that the model repeats correctly."""
    model.eval()
    repeated = torch.cat(
        [model(part)[:, -NUM_DIGITS:].argmax(dim=2) for part in symbols.split(batch_size)]
    )
    right = repeated == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()


# The sizes of the cores in `ttm study copy`.

COMMON: Mapping[str, Any] = MappingProxyType({**SMALL_CORE, "window": NUM_DIGITS})
"""Sizes of every core that has such fields. A window is as long as the Temporal Latent Bottleneck's
chunk."""

OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tlb": {"num_latents": NUM_DIGITS, "chunk_size": NUM_DIGITS, "cross_every": 1},
        "hourglass": {"hierarchy": "1@1 2@4 1@1"},
        "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
    }
)
"""Sizes of single cores. A core that is not named here gets `COMMON` alone."""


def copy_core(name: str, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` in the sizes of this study; see `study_core`."""
    return study_core(name, COMMON, OWN, options)


# One training on the copying task, until everything is copied correctly or the time is up.

HELD_OUT = 200
"""Number of held-out sequences of each length."""
HELD_OUT_SEED = 2**40
"""Seed of the held-out sequences, which are the same for all trainings of one length."""
EVALUATE_EVERY = 50
"""Steps between two evaluations on the held-out sequences."""


@dataclass(frozen=True)
class CopyResult:
    """The state of one training after an evaluation; the last one is the result."""

    core: str
    parameters: int
    blanks: int
    """T."""
    seed: int
    ticks_seen: int
    """How many ticks back the last output depends on, before training."""
    samples: int
    """Sequences presented so far; repeated ones count each time."""
    loss: float
    """Loss of the last batch."""
    digits: float
    """Portion of the held-out sequences' digits that are right."""
    sequences: float
    """Portion of the held-out sequences that are right from the first digit to the last."""
    seconds: float
    """Time since the training began, evaluations included."""

    @property
    def perfect(self) -> bool:
        """Whether all held-out sequences are right."""
        return self.sequences == 1


def train_copy(
    core: str,
    config: CoreConfig,
    blanks: int,
    seed: int,
    options: CopyOptions,
    report: Callable[[CopyResult], None],
) -> CopyResult:
    """Train `config`, called `core`, at T = `blanks`, and return the last evaluation.

    `report` is called with every evaluation.
    """
    torch.manual_seed(seed)
    model = SequenceModel(config, NUM_SYMBOLS, NUM_SYMBOLS, options.width)
    held_out = [
        sequences(HELD_OUT, length, torch.Generator().manual_seed(HELD_OUT_SEED))
        for length in held_out_lengths(blanks, options.shortest)
    ]
    seen = ticks_seen(model, held_out[-1][0][:1])
    begun = time.perf_counter()
    batches = within(_batches(blanks, seed, options), options.seconds)
    for progress in fit(
        model, batches, copy_loss, learning_rate=options.learning_rate, report_every=EVALUATE_EVERY
    ):
        right = [copy_accuracy(model, *part, options.batch_size) for part in held_out]
        digits, whole = (sum(portions) / len(right) for portions in zip(*right, strict=True))
        result = CopyResult(
            core=core,
            parameters=model.num_parameters,
            blanks=blanks,
            seed=seed,
            ticks_seen=seen,
            samples=progress.steps * options.batch_size,
            loss=progress.loss,
            digits=digits,
            sequences=whole,
            seconds=time.perf_counter() - begun,
        )
        report(result)
        if result.perfect:
            break
    return result


def held_out_lengths(blanks: int, shortest: int | None) -> list[int]:
    """Return T alone, or the shortest T of training, the mean of the two (rounded up), and T."""
    if shortest is None:
        return [blanks]
    return sorted({shortest, (shortest + blanks + 1) // 2, blanks})


def _batches(blanks: int, seed: int, options: CopyOptions) -> Iterator[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    if options.unique is None:
        return fresh_batches(options.batch_size, blanks, generator, options.shortest)
    return repeated(sequences(options.unique, blanks, generator), options.batch_size, generator)


# The notes, the table and the figures of `ttm study copy`.

PAPER_SAMPLES: Mapping[tuple[str, int], str] = MappingProxyType({("tlb", 100): "6,200"})
"""(Core, T) -> unique sequences after which every digit is right in the Temporal Latent Bottleneck
paper."""

NOTES = f"""\
Copying: {NUM_DIGITS} digits from 1 to 8, T zeros, a 9, {NUM_DIGITS} zeros. At the last symbols the
digits are to be repeated. By chance 1 of 8 digits is right (12.5 %), and no sequence.

  size       thousands of weights.
  sees       how many ticks back the last output depends on, by its gradient before training;
             "all": to the first. The task needs T + {lag(0)}. A core that sees less can only guess.
  digits     held-out digits that are right, and
  whole      held-out sequences without an error, when all were right or the time was up.
  samples    sequences presented until then; ">" where not all were right.
  s          seconds with evaluations, at most {{minutes:g}} minutes; CPU threads: {{threads}}.
  paper      unique sequences until all were right (Didolkar et al. 2022); — where not known.
"""
COLUMNS = ("core", "size", "T", "seed", "sees", "digits\n%", "whole\n%", "samples", "s", "paper")


def notes(options: CopyOptions) -> str:
    """Return the text above the table: the task, and what the columns hold."""
    return NOTES.format(minutes=options.minutes, threads=options.threads)


def progress_line(result: CopyResult) -> str:
    """Return a line on how a training is going."""
    return (
        f"{result.core}, T = {result.blanks}, seed {result.seed}: {result.samples} samples, "
        f"loss {result.loss:.3f}, digits {_percent(result.digits)} %, "
        f"sequences {_percent(result.sequences)} %, {result.seconds:.0f} s"
    )


def copy_table(
    results: Sequence[CopyResult], unique: int | None = None, shortest: int | None = None
) -> Table:
    """Return a table with one row for each training; for the others see `CopyOptions`."""
    kind = "fresh" if unique is None else f"{unique:,} unique, repeated"
    ticks = "T" if shortest is None else f"{shortest} to T"
    table = compact_table(f"Copying after {ticks} ticks, from {kind} sequences", COLUMNS)
    table.columns[0].no_wrap = False  # on a narrow screen names may wrap, figures may not
    for result in results:
        table.add_row(
            result.core,
            f"{result.parameters / 1000:.0f}",
            str(result.blanks),
            str(result.seed),
            _seen(result),
            _percent(result.digits),
            _percent(result.sequences),
            f"{'' if result.perfect else '>'}{result.samples:,}",
            f"{result.seconds:.0f}",
            PAPER_SAMPLES.get((result.core, result.blanks), "—"),
        )
    return table


def figures(
    configs: Mapping[str, CoreConfig], options: CopyOptions, results: Sequence[CopyResult]
) -> dict[str, Any]:
    """Return all figures as plain data, with the sizes and options that they belong to."""
    fields = ("width", "batch_size", "learning_rate", "seconds", "unique", "shortest")
    return {
        "cores": {name: core_to_dict(config) for name, config in configs.items()},
        "options": {field: getattr(options, field) for field in fields},
        "results": [{**asdict(result), "perfect": result.perfect} for result in results],
    }


def _seen(result: CopyResult) -> str:
    return "all" if result.ticks_seen >= result.blanks + 2 * NUM_DIGITS else str(result.ticks_seen)


def _percent(portion: float) -> str:
    """Format a portion in percent, rounded down: it is 100.0 only if nothing is missing."""
    return f"{int(portion * 1000) / 10:.1f}"


def run(options: CopyOptions) -> int:
    """Run the study and return the exit code.

    Raises `UserError` for core options that do not fit.
    """
    configs = {name: copy_core(name, options.core_options) for name in options.core}
    prepare_process(options.threads)
    results = [
        train_copy(
            name,
            config,
            blanks,
            seed,
            options,
            lambda result: print_progress(progress_line(result)),
        )
        for name, config in configs.items()
        for blanks in options.lengths
        for seed in options.seeds
    ]
    print_results(
        notes(options),
        copy_table(results, options.unique, options.shortest),
        figures=figures(configs, options, results),
        json_path=options.json,
    )
    return 0
