"""ListOps (Nangia & Bowman 2018): nested operations on digits, whose value is one of ten classes.

`[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. Made as in Long Range Arena (Tay et al. 2020): digits and operators are drawn at every
place until the bounds of length and depth are met, MED is the median rounded down, SM the sum modulo 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ttm.policy.errors import UserError

OPERATORS: Mapping[str, Callable[[Sequence[int]], int]] = MappingProxyType(
    {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: _median(values),
        "[SM": lambda values: sum(values) % 10,
    }
)
"""Token -> what it makes of its arguments."""
END = "]"
DIGITS = tuple("0123456789")
"""What expressions are made of, and what they are worth: the classes."""
FEWEST_ARGUMENTS = 2
SHORTEST = FEWEST_ARGUMENTS + 2
"""Tokens of an operator with the fewest arguments, all digits."""
DEEPEST = 100
"""Operators within one another: ten times the papers', and no trouble for a program that calls itself."""
ATTEMPTS_EACH = 50
"""Drawings for each expression wanted, and"""
FRUITLESS = 20_000
"""drawings in a row without a new one, after which it is an error that they do not fit or that all are known."""


@dataclass(frozen=True)
class Expression:
    """One expression, and what is known of it."""

    tokens: tuple[str, ...]
    value: int
    depth: int
    """Operators within one another."""

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


@dataclass(frozen=True)
class ListopsTask:
    """Which expressions are drawn. `UserError` for bounds that no expression meets."""

    min_length: int
    max_length: int
    """Tokens, both included: digits, operators and closing brackets."""
    depth: int
    """Operators within one another, at most. Long Range Arena counts the digits' level too: its 10 are 9 here."""
    arguments: int
    """Arguments of an operator, at most; each number from 2 on is equally likely."""
    operator_probability: float
    """Of an argument to be an operator, where the depth allows it. The outermost always is one."""

    def __post_init__(self) -> None:
        for name, least in (("min_length", 1), ("depth", 1), ("arguments", FEWEST_ARGUMENTS)):
            if getattr(self, name) < least:
                raise UserError(f"{_option(name)} is {getattr(self, name)}; give {least} or more")
        if self.depth > DEEPEST:
            raise UserError(f"--depth is {self.depth}; give {DEEPEST} or less")
        if not 0 <= self.operator_probability <= 1:
            raise UserError(
                f"--operator-probability is {self.operator_probability}; give a number from 0 to 1"
            )
        least, most = max(self.min_length, SHORTEST), min(self.max_length, self.longest)
        if self.min_length > self.max_length:
            raise UserError(
                f"--min-length is {self.min_length} and --max-length {self.max_length}; give a longer --max-length"
            )
        if least > most:
            raise UserError(
                f"no expression has {self.min_length} to {self.max_length} tokens: with --depth {self.depth} and "
                f"--arguments {self.arguments} they have {SHORTEST} to {self.longest}; change one of the four"
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest expression that depth and arguments allow."""
        length = 1
        for _ in range(self.depth):
            length = self.arguments * length + 2
        return length

    def make(self, count: int, seed: int) -> list[Expression]:
        """`count` different expressions; `UserError` if so many are not found in a bounded number of drawings."""
        rng = random.Random(seed)
        found: dict[
            tuple[str, ...], int
        ] = {}  # -> its drawing; in the order of these, as a set is not
        drawings = newest = 0
        while len(found) < count:
            drawings += 1
            if drawings > ATTEMPTS_EACH * count + FRUITLESS or drawings > newest + FRUITLESS:
                raise self._too_few(len(found), count, drawings - 1)
            tokens: list[str] = []
            self._draw_operator(rng, tokens, level=1)
            if self.min_length <= len(tokens) <= self.max_length:
                newest = max(newest, found.setdefault(tuple(tokens), drawings))
        return [Expression(tokens, *evaluate(tokens)) for tokens in found]

    def _too_few(self, found: int, count: int, drawings: int) -> UserError:
        return UserError(
            f"{drawings:,} drawings gave {found:,} different expressions of {self.min_length} to {self.max_length} "
            f"tokens, and {count:,} are needed; give fewer --samples, or other --min-length, --max-length, "
            f"--depth, --arguments or --operator-probability"
        )

    def _draw_operator(self, rng: random.Random, tokens: list[str], level: int) -> None:
        """Appends one with its arguments; gives up in the midst once it is too long, which its length shows."""
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
    """The value and the depth of an expression, from its tokens alone; `ValueError` if it is not one."""
    open_operators: list[tuple[str, list[int]]] = [
        ("", [])
    ]  # the outermost has the whole's value as its argument
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
    """Between two middle values, their mean rounded down."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
