"""The notation of the Hourglass paper (Nawrot et al. 2021) for hierarchies of layers, and its cost model.

`2@1 4@4 2@1`: two layers at full length, four on a sequence shortened 4 times, two at full length. Every scale is
told by how much shorter than the input it is, not than the scale around it.
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
    """Layers of one scale: the innermost has them once, those around it before and after what they enclose."""

    num_layers: int
    scale: int
    """How many elements of the input make one of this stage's."""


@dataclass(frozen=True)
class Hierarchy:
    """The stages from the outermost, which is at scale 1, to the innermost."""

    stages: tuple[Stage, ...]

    @property
    def factors(self) -> tuple[int, ...]:
        """k of every shortening, from the outside."""
        return tuple(inner.scale // outer.scale for outer, inner in pairwise(self.stages))

    @property
    def period(self) -> int:
        """Elements of the input after which everything repeats: the innermost scale."""
        return self.stages[-1].scale

    @property
    def linear_cost(self) -> Fraction:
        """Cost for each element of the input, in layers at full length, where attention shortens and upsamples.

        The paper's linear model, which holds where attention itself is cheap beside the matrix products: a layer
        at scale k costs 1 / k, and each change of scale as much as a layer on the finer side.
        """
        *around, innermost = self.stages
        layers = Fraction(innermost.num_layers, innermost.scale)
        return layers + sum(2 * Fraction(stage.num_layers + 1, stage.scale) for stage in around)


def parse_hierarchy(text: str) -> Hierarchy:
    """Reads `2@1 4@4 2@1`, `2@1 1@2 4@4 1@2 2@1` and so on; `UserError` names what is wrong.

    Stages around the innermost may have 0 layers. A hierarchy without "vanilla" layers is `0@1 4@4 0@1`, for which
    `4@4` is short.
    """
    fault = f"hierarchy '{text}' "
    entries = [_parse_entry(entry, fault) for entry in text.split()]
    if not entries:
        raise UserError(f"{fault}is empty; give layers and scales such as '2@1 4@4 2@1'")
    if entries != entries[::-1] or len(entries) % 2 == 0:
        raise UserError(
            f"{fault}does not return by the way that it came; give one that reads the same from both ends and has "
            f"one innermost entry, such as '2@1 4@4 2@1'"
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
                f"{fault}goes from scale {outer.scale} to {inner.scale}; give scales that are larger multiples of "
                f"the one around them"
            )
    if stages[-1].num_layers == 0:
        raise UserError(f"{fault}has no layer at its innermost scale; give at least one")
