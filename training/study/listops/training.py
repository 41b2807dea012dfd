"""Trains a core to predict the value of ListOps expressions, which it reads token by token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.sim.evaluation.intervals import wilson_interval
from ttm.training.common.fit import Progress, fit
from ttm.training.common.sequence_model import SequenceModel
from ttm.training.study.listops.options import ListopsOptions
from ttm.training.study.listops.task import DIGITS, END, OPERATORS, Expression

SYMBOLS = (*DIGITS, *OPERATORS, END)
NUMBERS = {token: number for number, token in enumerate(SYMBOLS)}
"""Token -> number of its symbol."""
PAD = len(SYMBOLS)
"""The symbol after the end of an expression. The scores there are not used."""
NUM_SYMBOLS = len(SYMBOLS) + 1
POOL = 16
"""Number of batches that are cut from one pool of expressions, sorted by length, so that there is
little padding."""
EVALUATION_BATCH = 256
"""Expressions that are evaluated at once."""
REPORT_EVERY = 100
"""Steps between two lines of progress."""


@dataclass(frozen=True)
class Tally:
    """How many of the held-out values are right, by depth."""

    by_depth: dict[int, tuple[int, int]]
    """Depth -> how many are right, and how many there are; in ascending order."""

    @property
    def right(self) -> int:
        """How many are right, at all depths."""
        return sum(right for right, _ in self.by_depth.values())

    @property
    def count(self) -> int:
        """How many there are, at all depths."""
        return sum(count for _, count in self.by_depth.values())

    @property
    def accuracy(self) -> float:
        """The portion that is right."""
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy over the choice of the held-out expressions."""
        return wilson_interval(self.right, self.count)


@dataclass(frozen=True)
class ListopsResult:
    """The result of one training."""

    core: str
    parameters: int
    seed: int
    steps: int
    loss: float
    """Loss of the last batch."""
    seconds: float
    """Duration of the training, without the evaluation."""
    tally: Tally


class ExpressionBatch(NamedTuple):
    """B expressions as tensors, padded to the T tokens of the longest."""

    symbols: Tensor
    """(B, T) int64."""
    last: Tensor
    """(B,) int64, the tick of each expression's last token."""
    values: Tensor
    """(B,) int64."""


def to_batch(expressions: Sequence[Expression]) -> ExpressionBatch:
    """Return the expressions as a batch, in the same order."""
    rows = [torch.tensor([NUMBERS[token] for token in e.tokens]) for e in expressions]
    return ExpressionBatch(
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD),
        torch.tensor([len(row) - 1 for row in rows]),
        torch.tensor([e.value for e in expressions]),
    )


def last_scores(model: SequenceModel, symbols: Tensor, last: Tensor) -> Tensor:
    """Return the scores (B, classes) at the tick of the last token; see `ExpressionBatch`."""
    scores: Tensor = model(symbols)[torch.arange(len(symbols)), last]
    return scores


def listops_loss(model: SequenceModel, symbols: Tensor, last: Tensor, values: Tensor) -> Tensor:
    """Return the cross-entropy over the ten values, a scalar; see `ExpressionBatch`."""
    return F.cross_entropy(last_scores(model, symbols, last), values)


def training_batches(
    expressions: Sequence[Expression], batch_size: int, steps: int, seed: int
) -> Iterator[ExpressionBatch]:
    """Yield `steps` batches of expressions of similar length.

    Every pass over the expressions has another order, which depends on `seed` alone.
    """
    rng = random.Random(seed)
    made = 0
    while True:
        for batch in _one_pass(expressions, batch_size, rng):
            if made == steps:
                return
            made += 1
            yield batch


def train_listops(
    core: str,
    config: CoreConfig,
    train: Sequence[Expression],
    held_out: Sequence[Expression],
    seed: int,
    options: ListopsOptions,
    report: Callable[[Progress], None],
) -> ListopsResult:
    """Train `config`, called `core`, and evaluate it on the held-out expressions.

    seed: determines the initial weights and the order of the batches; all cores get the same
        batches.
    report: called with the progress every `REPORT_EVERY` steps and at the end.
    """
    torch.manual_seed(seed)
    model = SequenceModel(config, NUM_SYMBOLS, len(DIGITS), options.width)
    batches = training_batches(train, options.batch_size, options.steps, seed)
    for progress in fit(
        model,
        batches,
        listops_loss,
        learning_rate=options.learning_rate,
        report_every=REPORT_EVERY,
    ):
        report(progress)
    right = tally(held_out, predicted_values(model, held_out))
    return ListopsResult(
        core, model.num_parameters, seed, progress.steps, progress.loss, progress.seconds, right
    )


def predicted_values(model: SequenceModel, expressions: Sequence[Expression]) -> list[int]:
    """Return the value with the highest score for each expression."""
    order = sorted(range(len(expressions)), key=lambda i: len(expressions[i].tokens))
    predicted = [0] * len(expressions)
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(order), EVALUATION_BATCH):
            places = order[first : first + EVALUATION_BATCH]
            batch = to_batch([expressions[i] for i in places])
            best = last_scores(model, batch.symbols, batch.last).argmax(dim=1)
            for place, value in zip(places, best.tolist(), strict=True):
                predicted[place] = value
    return predicted


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


def tally(expressions: Sequence[Expression], predicted: Sequence[int]) -> Tally:
    """Count how many predicted values are right, by depth."""
    count, right = Counter(e.depth for e in expressions), Counter[int]()
    for expression, value in zip(expressions, predicted, strict=True):
        right[expression.depth] += value == expression.value
    return Tally({depth: (right[depth], count[depth]) for depth in sorted(count)})


def _one_pass(
    expressions: Sequence[Expression], batch_size: int, rng: random.Random
) -> Iterator[ExpressionBatch]:
    order = list(expressions)
    rng.shuffle(order)
    for first in range(0, len(order), POOL * batch_size):
        pool = sorted(order[first : first + POOL * batch_size], key=lambda e: len(e.tokens))
        batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        rng.shuffle(batches)
        yield from map(to_batch, batches)
