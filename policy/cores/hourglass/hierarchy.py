"""The Hourglass paper's notation for hierarchies of layers (Nawrot et al. 2021), and its cost model.

`2@1 4@4 2@1` stands for two layers at full length, four on a sequence shortened 4 times, and two at
full length. Each scale is relative to the input, not to the scale around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ttm.policy.errors import UserError

ENTRY = re.compile(r"(\d+)@(\d+)")


@dataclass(frozen=True)
class Stage:
    """The layers of one scale.

    The innermost stage runs them once; the others run them before and after the stages they enclose.
    """

    num_layers: int
    scale: int
    """The number of elements of the input for one of this stage."""


@dataclass(frozen=True)
class Hierarchy:
    """The stages, from the outermost, which has scale 1, to the innermost."""

    stages: tuple[Stage, ...]

    @property
    def factors(self) -> tuple[int, ...]:
        """The factor k of every shortening, outermost first."""
        return tuple(inner.scale // outer.scale for outer, inner in pairwise(self.stages))

    @property
    def period(self) -> int:
        """The number of elements of the input after which all phases repeat: the innermost scale."""
        return self.stages[-1].scale

    @property
    def linear_cost(self) -> Fraction:
        """The cost per element of the input, in layers at full length, with attention resampling.

        This is the paper's linear model, which holds where attention itself costs little compared
        with the matrix products: a layer at scale k costs 1 / k, and each change of scale costs as
        much as a layer on its finer side.
        """
        *around, innermost = self.stages
        layers = Fraction(innermost.num_layers, innermost.scale)
        return layers + sum(2 * Fraction(stage.num_layers + 1, stage.scale) for stage in around)


def parse_hierarchy(text: str) -> Hierarchy:
    """Parse a hierarchy such as `2@1 4@4 2@1` or `2@1 1@2 4@4 1@2 2@1`.

    Stages around the innermost may have 0 layers. A hierarchy without "vanilla" layers is
    `0@1 4@4 0@1`, or `4@4` for short. Raises `UserError`, which names what is wrong.
    """
    fault = f"hierarchy '{text}' "
    entries = [_parse_entry(entry, fault) for entry in text.split()]
    if not entries:
        raise UserError(f"{fault}is empty; give layers and scales such as '2@1 4@4 2@1'")
    if entries != entries[::-1] or len(entries) % 2 == 0:
        raise UserError(
            f"{fault}does not return by the way that it came; give one that reads the same from both "
            f"ends and has one innermost entry, such as '2@1 4@4 2@1'"
        )
    stages = entries[: len(entries) // 2 + 1]
    if stages[0].scale != 1:
        stages = [Stage(0, 1), *stages]
    _check_stages(stages, fault)
    return Hierarchy(tuple(stages))


def _parse_entry(entry: str, fault: str) -> Stage:
    match = ENTRY.fullmatch(entry)
    if match is None:
        raise UserError(f"{fault}has the entry '{entry}'; give each as layers@scale, such as 4@2")
    return Stage(*map(int, match.groups()))


def _check_stages(stages: Sequence[Stage], fault: str) -> None:
    for outer, inner in pairwise(stages):
        if inner.scale <= outer.scale or inner.scale % outer.scale:
            raise UserError(
                f"{fault}goes from scale {outer.scale} to {inner.scale}; give scales that are larger "
                f"multiples of the one around them"
            )
    if stages[-1].num_layers == 0:
        raise UserError(f"{fault}has no layer at its innermost scale; give at least one")
