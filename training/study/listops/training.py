"""Trains a core to tell the value of ListOps expressions, which it reads token by token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.sim.evaluation.intervals import wilson_interval
from ttm.training.common.fit import Progress, fit
from ttm.training.common.sequence_model import SequenceModel
from ttm.training.study.listops.task import DIGITS, END, OPERATORS, Expression

SYMBOLS = (*DIGITS, *OPERATORS, END)
NUMBERS = {token: number for number, token in enumerate(SYMBOLS)}
PAD = len(SYMBOLS)
"""Stands after an expression's end, where no score is taken."""
NUM_SYMBOLS = len(SYMBOLS) + 1
POOL = 16
"""Batches that are cut from expressions sorted by length, so that there is little padding."""
EVALUATION_BATCH = 256
STEPS_BETWEEN = 100
"""Steps from one line of progress to the next."""


@dataclass(frozen=True)
class ListopsOptions:
    """What is the same for all trainings of a study."""

    width: int
    batch_size: int
    learning_rate: float
    steps: int


@dataclass(frozen=True)
class Tally:
    """How many of the held-out expressions were told, by depth."""

    by_depth: dict[int, tuple[int, int]]
    """Depth -> right, and all, from the shallowest."""

    @property
    def right(self) -> int:
        return sum(right for right, _ in self.by_depth.values())

    @property
    def count(self) -> int:
        return sum(count for _, count in self.by_depth.values())

    @property
    def accuracy(self) -> float:
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's at 95 %: what other held-out expressions would have given this training."""
        return wilson_interval(self.right, self.count)


@dataclass(frozen=True)
class ListopsResult:
    """How one training ended."""

    core: str
    parameters: int
    seed: int
    steps: int
    loss: float
    """Of the last batch."""
    seconds: float
    """Of training, without evaluation."""
    tally: Tally


@dataclass(frozen=True)
class Batch:
    """Expressions side by side, padded to the longest of them."""

    symbols: Tensor
    """(B, T) int64."""
    last: Tensor
    """(B,) int64: the tick of each expression's last token."""
    values: Tensor
    """(B,) int64."""


def to_batch(expressions: Sequence[Expression]) -> Batch:
    """As tensors, in the order given."""
    rows = [torch.tensor([NUMBERS[token] for token in e.tokens]) for e in expressions]
    return Batch(
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD),
        torch.tensor([len(row) - 1 for row in rows]),
        torch.tensor([e.value for e in expressions]),
    )


def last_scores(model: SequenceModel, symbols: Tensor, last: Tensor) -> Tensor:
    """The scores (B, classes) when the last token has been read, (B,) ticks; see `Batch`."""
    scores: Tensor = model(symbols)[torch.arange(len(symbols)), last]
    return scores


def listops_loss(model: SequenceModel, symbols: Tensor, last: Tensor, values: Tensor) -> Tensor:
    """Cross-entropy over the ten values; see `Batch`."""
    return F.cross_entropy(last_scores(model, symbols, last), values)


def training_batches(
    expressions: Sequence[Expression], batch_size: int, steps: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """`steps` batches of like lengths, pass after pass in a new order, which depends on `seed` alone."""
    rng = random.Random(seed)
    made = 0
    while True:
        for batch in _one_pass(expressions, batch_size, rng):
            if made == steps:
                return
            made += 1
            yield batch.symbols, batch.last, batch.values


def train_listops(
    core: str,
    config: CoreConfig,
    train: Sequence[Expression],
    held_out: Sequence[Expression],
    seed: int,
    options: ListopsOptions,
    report: Callable[[Progress], None],
) -> ListopsResult:
    """Trains `config`, called `core`, and asks it for the held-out values; `report` is told how it goes on.

    seed: of the first weights and of the batches' order; all cores meet the same batches.
    """
    torch.manual_seed(seed)
    model = SequenceModel(config, NUM_SYMBOLS, len(DIGITS), options.width)
    batches = training_batches(train, options.batch_size, options.steps, seed)
    for progress in fit(
        model,
        batches,
        listops_loss,
        learning_rate=options.learning_rate,
        report_every=STEPS_BETWEEN,
    ):
        report(progress)
    right = tally(held_out, told_values(model, held_out))
    return ListopsResult(
        core, model.num_parameters, seed, progress.steps, progress.loss, progress.seconds, right
    )


def told_values(model: SequenceModel, expressions: Sequence[Expression]) -> list[int]:
    """The value with the highest score of each."""
    order = sorted(range(len(expressions)), key=lambda i: len(expressions[i].tokens))
    told = [0] * len(expressions)
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(order), EVALUATION_BATCH):
            places = order[first : first + EVALUATION_BATCH]
            batch = to_batch([expressions[i] for i in places])
            best = last_scores(model, batch.symbols, batch.last).argmax(dim=1)
            for place, value in zip(places, best.tolist(), strict=True):
                told[place] = value
    return told


def guessed_values(
    train: Sequence[Expression],
    expressions: Sequence[Expression],
    seen: Callable[[Expression], str],
) -> list[int]:
    """The value that was most frequent in training among those of which the same was `seen`."""
    values: dict[str, Counter[int]] = {}
    for expression in train:
        values.setdefault(seen(expression), Counter())[expression.value] += 1
    best = {what: counts.most_common(1)[0][0] for what, counts in values.items()}
    return [best.get(seen(expression), 0) for expression in expressions]


def tally(expressions: Sequence[Expression], told: Sequence[int]) -> Tally:
    """Compares the values told with the true ones."""
    of, right = Counter(e.depth for e in expressions), Counter[int]()
    for expression, value in zip(expressions, told, strict=True):
        right[expression.depth] += value == expression.value
    return Tally({depth: (right[depth], of[depth]) for depth in sorted(of)})


def _one_pass(
    expressions: Sequence[Expression], batch_size: int, rng: random.Random
) -> Iterator[Batch]:
    order = list(expressions)
    rng.shuffle(order)
    for first in range(0, len(order), POOL * batch_size):
        pool = sorted(order[first : first + POOL * batch_size], key=lambda e: len(e.tokens))
        batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        rng.shuffle(batches)
        yield from map(to_batch, batches)
