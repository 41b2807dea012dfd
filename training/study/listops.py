"""`ttm study listops`: which memory learns the value of nested operations, read token by token?

ListOps (Nangia & Bowman 2018): `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9, one of ten classes. MED is the median
rounded down, SM the sum modulo 10. As in Long Range Arena (Tay et al. 2020) every argument is drawn to
be a digit or an operator, and an expression is kept if its length and depth are within the bounds.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.datasets.console import TitledTable
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_to_dict
from ttm.policy.errors import UserError, options, require_at_least, require_at_most, require_some
from ttm.sim.results import Rate
from ttm.training.console import compact_table, print_progress
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, study_core
from ttm.training.study.common import (
    SMALL_CORE,
    SymbolStudy,
    percent,
    prepare_process,
    print_results,
)

OWN: dict[str, dict[str, Any]] = {
    "tlb": {"num_latents": 10, "chunk_size": 10, "cross_every": 1},
    "hourglass": {"hierarchy": "1@1 2@4 1@1"},
    "ttm": {"memory_size": 16, "process_size": 8, "initial_memory": "learned"},
    "none": {"memory_size": 1, "process_size": 8},
    "frame-stacking": {"window": 8},
    "mixer": {"window": 8},
}
"""Sizes of single cores, beside those of `SMALL_CORE`."""
COVERING = ("transformer", "hourglass")
"""Cores whose window covers the longest expression; `transformer` is then the plain causal one."""

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
DIGITS = tuple("0123456789")
"""The digits, which are also the possible values of an expression, and so the classes."""
NUMBERS = {token: number for number, token in enumerate((*DIGITS, *OPERATORS, END))}
"""Token -> number of its symbol."""
PAD = len(NUMBERS)
"""The symbol after the end of an expression. The scores there are not used."""
NUM_SYMBOLS = PAD + 1

FEWEST_ARGUMENTS = 2
DEEPEST = 100  # ten times as deep as in the papers, and within Python's recursion limit
MOST_DRAWS_EACH, MOST_IDLE_DRAWS = 50, 20_000  # then `ListopsTask.make` gives up
POOL = 16  # batches that are cut from one pool of expressions, sorted by length, to save padding
EVALUATION_BATCH = 256
REPORT_EVERY = 100  # steps

NOTES = """\
ListOps, scaled down: {samples:,} expressions of {task.min_length} to {task.max_length} tokens with at most \
{task.depth} nested operators.
These figures are not comparable with published ones: in Long Range Arena (Tay et al. 2020) expressions
have 500 to 2,000 tokens, and a plain Transformer is right in 36.37 %. For example, {example}
is {value}.

  size       thousands of weights.
  accuracy   values of {held_out:,} held-out expressions that are right (%), with Wilson's 95 % interval,
             after {steps:,} steps of {batch_size} expressions.
  s          seconds of training, on one CPU thread.
  guess      without a network: the most frequent value, of all or with the same first operator.
"""


class Expression(NamedTuple):
    """One expression with its value."""

    tokens: tuple[str, ...]
    value: int


@dataclass(frozen=True)
class ListopsTask:
    """The bounds of the expressions. Raises `UserError` if they are out of range."""

    min_length: int = 10
    max_length: int = 50
    """Fewest and most tokens: digits, operators and closing brackets."""
    depth: int = 3
    """Most operators within one another. Long Range Arena also counts the level of the digits: its
    10 are 9 here."""
    arguments: int = 5
    """Most arguments of an operator. All numbers from 2 to this one are equally likely."""
    operator_probability: float = 0.25
    """Probability that an argument is an operator, where the depth allows one. The outermost token
    always is one."""

    def __post_init__(self) -> None:
        require_at_least(self.min_length, options(self, "max_length"))
        require_at_least(1, options(self, "depth"))
        require_at_most(DEEPEST, options(self, "depth"))

    def make(self, count: int, seed: int) -> list[Expression]:
        """Draw `count` different expressions.

        Raises `UserError` if too few are found in a bounded number of draws.
        """
        rng = random.Random(seed)
        found: dict[tuple[str, ...], None] = {}  # a dictionary keeps the order of the draws
        for _ in range(MOST_DRAWS_EACH * count + MOST_IDLE_DRAWS):
            tokens: list[str] = []
            self._draw_operator(rng, tokens, level=1)
            if self.min_length <= len(tokens) <= self.max_length:
                found[tuple(tokens)] = None
            if len(found) == count:
                return [Expression(tokens, evaluate(tokens)) for tokens in found]
        raise UserError(
            f"many draws gave {len(found):,} different expressions of {self.min_length} to "
            f"{self.max_length} tokens, and {count:,} are needed; give fewer --samples"
        )

    def _draw_operator(self, rng: random.Random, tokens: list[str], level: int) -> None:
        """Append an operator and its arguments to `tokens`, but stop when there are too many."""
        tokens.append(rng.choice(tuple(OPERATORS)))
        for _ in range(rng.randint(FEWEST_ARGUMENTS, self.arguments)):
            if len(tokens) > self.max_length:
                return
            if level < self.depth and rng.random() < self.operator_probability:
                self._draw_operator(rng, tokens, level + 1)
            else:
                tokens.append(rng.choice(DIGITS))
        tokens.append(END)


def evaluate(tokens: Sequence[str]) -> int:
    """Return the value of an expression."""
    # Operators that are not closed yet, with their arguments so far; the first is the whole.
    open_operators: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens:
        if token in OPERATORS:
            open_operators.append((token, []))
        elif token == END:
            name, arguments = open_operators.pop()
            open_operators[-1][1].append(OPERATORS[name](arguments))
        else:
            open_operators[-1][1].append(int(token))
    return open_operators[0][1][0]


@dataclass(frozen=True)
class StudyListopsCommand(SymbolStudy):
    """Train memories to predict the value of ListOps expressions, scaled down.

    For example, the value of `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9.

    The core reads one token in each tick and predicts the value at the last one. The expressions
    are made as in Long Range Arena, but they are much shorter, and the models are small, so that
    all cores take about ten minutes on one CPU core. The figures are not comparable with published
    ones.
    """

    core: tuple[CoreName, ...] = ("tlb", "hourglass", "ttm", "none", "lstm", "transformer")
    """Cores to compare."""
    samples: int = 64_000
    """Expressions to train on. The default number of steps presents each of them once."""
    held_out: int = 2000
    """Expressions for the evaluation; none of them is trained on."""
    max_length: int = ListopsTask.max_length
    """Most tokens of an expression: digits, operators and closing brackets."""
    depth: int = ListopsTask.depth
    """Most operators within one another."""
    steps: int = 1000
    """Training steps, the same for all cores."""
    batch_size: int = 64
    """Expressions in a batch."""
    data_seed: int = 0
    """Seed of the expressions."""

    @property
    def task(self) -> ListopsTask:
        """The bounds of the expressions. Raises `UserError` if they are out of range."""
        return ListopsTask(max_length=self.max_length, depth=self.depth)

    def check(self) -> None:
        super().check()
        require_some(options(self, "core"))
        require_at_least(1, options(self, "samples", "held_out", "steps"))
        _ = self.task  # raises if the bounds are out of range

    def run(self) -> int:
        """Train the cores one after another, print the table, and return the exit code."""
        self.check()
        configs = {n: listops_core(n, self.max_length, self.core_options) for n in self.core}
        expressions = self.task.make(self.held_out + self.samples, self.data_seed)
        held_out, train = expressions[: self.held_out], expressions[self.held_out :]
        prepare_process()
        results = [
            self.train(name, config, train, held_out, seed)
            for name, config in configs.items()
            for seed in self.seeds
        ]
        guesses = {
            "guess": tally(held_out, guessed_values(train, held_out, lambda _: "")),
            "guess by 1st": tally(held_out, guessed_values(train, held_out, lambda e: e.tokens[0])),
        }
        shown = min(held_out, key=lambda expression: abs(len(expression.tokens) - 15))
        notes = NOTES.format(
            task=self.task,
            samples=self.samples,
            example=" ".join(shown.tokens),
            value=shown.value,
            held_out=self.held_out,
            steps=self.steps,
            batch_size=self.batch_size,
        )
        figures = {
            "task": asdict(self.task),
            "cores": {name: core_to_dict(config) for name, config in configs.items()},
            "options": self.chosen("width", "batch_size", "learning_rate", "steps"),
            "guesses": guesses,
            "results": results,
        }
        table = listops_table(guesses, results)
        print_results(notes, table, figures=figures, json_path=self.json)
        return 0

    def train(
        self,
        core: str,
        config: CoreConfig,
        train: Sequence[Expression],
        held_out: Sequence[Expression],
        seed: int,
    ) -> dict[str, Any]:
        """Train `config`, called `core`; return its tally on the held-out expressions with other figures.

        seed: of the initial weights and of the order of the batches, the same ones for all cores.
        """
        torch.manual_seed(seed)
        model = SequenceModel(config, NUM_SYMBOLS, len(DIGITS), self.width)
        batches = islice(training_batches(train, self.batch_size, seed), self.steps)
        fitting = fit(
            model,
            batches,
            listops_loss,
            learning_rate=self.learning_rate,
            report_every=REPORT_EVERY,
        )
        for progress in fitting:
            print_progress(
                f"{core}, seed {seed}: {progress.steps} of {self.steps} steps, "
                f"loss {progress.loss:.3f}, {progress.seconds:.0f} s"
            )
        return {
            "core": core,
            "parameters": model.num_parameters,
            "seed": seed,
            "steps": progress.steps,
            "loss": progress.loss,
            "seconds": progress.seconds,
            "tally": tally(held_out, predicted_values(model, held_out)),
        }


def listops_core(name: str, max_length: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` in the sizes of this study; see `study_core`.

    max_length: number of tokens that the windows of the cores in `COVERING` cover.
    """
    window = {"window": max(2, max_length)} if name in COVERING else {}
    return study_core(name, SMALL_CORE, {name: {**OWN.get(name, {}), **window}}, options)


def to_batch(expressions: Sequence[Expression]) -> tuple[Tensor, Tensor, Tensor]:
    """Return B expressions as int64 tensors, in the same order.

    Symbols (B, T), padded to the T tokens of the longest; the ticks of the last tokens (B,); values (B,).
    """
    rows = [torch.tensor([NUMBERS[token] for token in e.tokens]) for e in expressions]
    return (
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD),
        torch.tensor([len(row) - 1 for row in rows]),
        torch.tensor([e.value for e in expressions]),
    )


def training_batches(
    expressions: Sequence[Expression], batch_size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of expressions of similar length without end.

    Every pass over the expressions has another order, which depends on `seed` alone.
    """
    rng = random.Random(seed)
    while True:
        order = list(expressions)
        rng.shuffle(order)
        for first in range(0, len(order), POOL * batch_size):
            pool = sorted(order[first : first + POOL * batch_size], key=lambda e: len(e.tokens))
            batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            rng.shuffle(batches)
            yield from map(to_batch, batches)


def last_scores(model: SequenceModel, symbols: Tensor, last: Tensor) -> Tensor:
    """Return the scores (B, classes) at the tick of the last token; see `to_batch`."""
    scores: Tensor = model(symbols)[torch.arange(len(symbols)), last]
    return scores


def listops_loss(model: SequenceModel, symbols: Tensor, last: Tensor, values: Tensor) -> Tensor:
    """Return the cross-entropy over the ten values, a scalar; see `to_batch`."""
    return F.cross_entropy(last_scores(model, symbols, last), values)


@torch.inference_mode()
def predicted_values(model: SequenceModel, expressions: Sequence[Expression]) -> list[int]:
    """Return the value with the highest score for each expression."""
    order = sorted(range(len(expressions)), key=lambda i: len(expressions[i].tokens))
    predicted = torch.empty(len(order), dtype=torch.int64)
    model.eval()
    for places in torch.tensor(order).split(EVALUATION_BATCH):
        symbols, last, _ = to_batch([expressions[i] for i in places])
        predicted[places] = last_scores(model, symbols, last).argmax(dim=1)
    return predicted.tolist()


def guessed_values(
    train: Sequence[Expression],
    expressions: Sequence[Expression],
    feature: Callable[[Expression], str],
) -> list[int]:
    """Guess each value by the most frequent one of training expressions with the same feature."""
    values: dict[str, Counter[int]] = {}
    for expression in train:
        values.setdefault(feature(expression), Counter())[expression.value] += 1
    best = {key: counts.most_common(1)[0][0] for key, counts in values.items()}
    return [best.get(feature(expression), 0) for expression in expressions]


def tally(expressions: Sequence[Expression], predicted: Sequence[int]) -> dict[str, Any]:
    """Return the portion of right values, its Wilson 95 % interval, and the counts."""
    right = sum(e.value == value for e, value in zip(expressions, predicted, strict=True))
    rate = Rate(right, len(expressions))
    found = {"right": right, "count": len(expressions)}
    return {"accuracy": rate.rate, "interval": rate.interval, **found}


def _rate(counted: Mapping[str, Any]) -> str:
    return percent(Rate(counted["right"], counted["count"]))


def listops_table(
    guesses: Mapping[str, dict[str, Any]], results: Sequence[dict[str, Any]]
) -> TitledTable:
    """Return a table with one row for each guess and each training."""
    rows = [[name, "—", "—", _rate(counted), "—"] for name, counted in guesses.items()]
    for each in results:
        named = each["core"], f"{each['parameters'] / 1000:.0f}", each["seed"]
        rows.append([*named, _rate(each["tally"]), f"{each['seconds']:.0f}"])
    columns = ("core", "size", "seed", "accuracy (95 %)", "s")
    return compact_table("Values of held-out expressions", columns, rows)
