"""ListOps: the value of nested operations, read token by token.

ListOps (Nangia & Bowman 2018): `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9, one of ten classes. MED is the median
rounded down, SM the sum modulo 10. As in Long Range Arena (Tay et al. 2020) every argument is drawn to
be a digit or an operator, and an expression is kept if its length and depth are within the bounds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError, options, require_at_least, require_at_most
from ttm.training.sequence_model import SequenceModel

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
            f"{self.max_length} tokens, and {count:,} are needed; give fewer"
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
def predicted_values(
    model: SequenceModel, expressions: Sequence[Expression], batch_size: int = EVALUATION_BATCH
) -> list[int]:
    """Return the value with the highest score for each expression."""
    order = sorted(range(len(expressions)), key=lambda i: len(expressions[i].tokens))
    predicted = torch.empty(len(order), dtype=torch.int64)
    model.eval()
    for places in torch.tensor(order).split(batch_size):
        symbols, last, _ = to_batch([expressions[i] for i in places])
        predicted[places] = last_scores(model, symbols, last).argmax(dim=1)
    return predicted.tolist()
