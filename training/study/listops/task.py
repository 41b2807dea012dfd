"""ListOps (Nangia & Bowman 2018): nested operations on digits, whose value is one of ten classes.

`[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. The expressions are made as in Long Range Arena (Tay et al. 2020):
every argument is drawn to be a digit or an operator, and an expression is kept if its length and
depth are within the bounds. MED is the median rounded down, SM the sum modulo 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ttm.policy.checks import options, require_at_least, require_portion
from ttm.policy.errors import UserError

OPERATORS: Mapping[str, Callable[[Sequence[int]], int]] = MappingProxyType(
    {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: _median(values),
        "[SM": lambda values: sum(values) % 10,
    }
)
"""Token of an operator -> the function that it applies to its arguments."""
END = "]"
DIGITS = tuple("0123456789")
"""The digits, which are also the possible values of an expression, and so the classes."""
FEWEST_ARGUMENTS = 2
SHORTEST = FEWEST_ARGUMENTS + 2
"""Tokens of an operator with the fewest arguments, all digits."""
DEEPEST = 100
"""Most operators within one another: ten times as many as in the papers, and within Python's
recursion limit."""
MOST_DRAWS_EACH = 50
"""`ListopsTask.make` gives up after so many draws for each expression (and `MOST_IDLE_DRAWS` in
addition)."""
MOST_IDLE_DRAWS = 20_000
"""`ListopsTask.make` gives up after so many draws in a row without a new expression within the
bounds."""


@dataclass(frozen=True)
class Expression:
    """One expression with its value and depth."""

    tokens: tuple[str, ...]
    value: int
    depth: int
    """Number of operators within one another."""

    @property
    def text(self) -> str:
        """The tokens with spaces between them."""
        return " ".join(self.tokens)


@dataclass(frozen=True)
class ListopsTask:
    """The bounds of the expressions. Raises `UserError` if no expression meets them."""

    min_length: int
    max_length: int
    """Fewest and most tokens: digits, operators and closing brackets."""
    depth: int
    """Most operators within one another. Long Range Arena also counts the level of the digits: its
    10 are 9 here."""
    arguments: int
    """Most arguments of an operator. All numbers from 2 to this one are equally likely."""
    operator_probability: float
    """Probability that an argument is an operator, where the depth allows one. The outermost token
    always is one."""

    def __post_init__(self) -> None:
        require_at_least(1, options(self, "min_length", "depth"))
        require_at_least(FEWEST_ARGUMENTS, options(self, "arguments"))
        if self.depth > DEEPEST:
            raise UserError(f"--depth is {self.depth}; give {DEEPEST} or less")
        require_portion(options(self, "operator_probability"))
        least, most = max(self.min_length, SHORTEST), min(self.max_length, self.longest)
        if self.min_length > self.max_length:
            raise UserError(
                f"--min-length is {self.min_length} and --max-length {self.max_length}; "
                f"give a longer --max-length"
            )
        if least > most:
            raise UserError(
                f"no expression has {self.min_length} to {self.max_length} tokens: "
                f"with --depth {self.depth} and --arguments {self.arguments} they have "
                f"{SHORTEST} to {self.longest}; change one of the four"
            )

    @property
    def longest(self) -> int:
        """Number of tokens of the longest expression that depth and arguments allow."""
        length = 1
        for _ in range(self.depth):
            length = self.arguments * length + 2
        return length

    def make(self, count: int, seed: int) -> list[Expression]:
        """Draw `count` different expressions.

        Raises `UserError` if too few are found in a bounded number of draws.
        """
        rng = random.Random(seed)
        # Tokens -> number of the draw. A dictionary keeps the order of the draws; a set does not.
        found: dict[tuple[str, ...], int] = {}
        draws = newest = 0
        while len(found) < count:
            draws += 1
            if (
                draws > MOST_DRAWS_EACH * count + MOST_IDLE_DRAWS
                or draws > newest + MOST_IDLE_DRAWS
            ):
                raise self._too_few(len(found), count, draws - 1)
            tokens: list[str] = []
            self._draw_operator(rng, tokens, level=1)
            if self.min_length <= len(tokens) <= self.max_length:
                newest = max(newest, found.setdefault(tuple(tokens), draws))
        return [Expression(tokens, *evaluate(tokens)) for tokens in found]

    def _too_few(self, found: int, count: int, draws: int) -> UserError:
        return UserError(
            f"{draws:,} draws gave {found:,} different expressions of {self.min_length} to "
            f"{self.max_length} tokens, and {count:,} are needed; give fewer --samples, or other "
            f"--min-length, --max-length, --depth, --arguments or --operator-probability"
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


def evaluate(tokens: Sequence[str]) -> tuple[int, int]:
    """Return the value and the depth of an expression.

    Raises `ValueError` if the tokens are not one expression.
    """
    # Operators that are not closed yet, with their arguments so far; the first is the whole.
    open_operators: list[tuple[str, list[int]]] = [("", [])]
    depth = 0
    for token in tokens:
        if token in OPERATORS:
            open_operators.append((token, []))
            depth = max(depth, len(open_operators) - 1)
        elif token == END and open_operators[-1][1] and len(open_operators) > 1:
            name, arguments = open_operators.pop()
            open_operators[-1][1].append(OPERATORS[name](arguments))
        elif token in DIGITS:
            open_operators[-1][1].append(int(token))
        else:
            raise ValueError(f"'{token}' does not belong where it stands in {' '.join(tokens)}")
    (_, values), *unclosed = open_operators
    if unclosed or len(values) != 1:
        raise ValueError(f"not one whole expression: {' '.join(tokens)}")
    return values[0], depth


def _median(values: Sequence[int]) -> int:
    """Return the median; of two middle values the mean, rounded down."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
