"""What the report tells of choices: pooled rates, and differences on the same initial states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from ttm.sim.evaluation.condition import LIVE
from ttm.sim.evaluation.intervals import CONFIDENCE, PairedTest, mcnemar_exact
from ttm.sim.evaluation.result import Rate
from ttm.training.study.suite.figures import Choices


def right_choices(choices: Iterable[Choices]) -> Rate:
    """Return the right choices of several evaluations together."""
    rates = [each.rate for each in choices]
    return Rate(sum(rate.count for rate in rates), sum(rate.episodes for rate in rates))


def donor_choices(choices: Iterable[Choices]) -> Rate:
    """Return the choices that followed the donor, of the evaluations that had one."""
    counts = [(each.donor, each.episodes) for each in choices if each.donor is not None]
    return Rate(sum(count for count, _ in counts), sum(episodes for _, episodes in counts))


@dataclass(frozen=True)
class Difference:
    """How much more often the first of two variants chose right."""

    test: PairedTest
    by_seed: Mapping[int, float]
    """Seed of the training -> difference of the rates."""

    @property
    def value(self) -> float:
        """The difference of the rates."""
        return self._with(0.0)[0]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference of paired rates (Agresti and Min 2005).

        It is Wald's, after half an episode has been added to each of the four counts.
        """
        value, deviation = self._with(0.5)
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        return max(-1.0, value - z * deviation), min(1.0, value + z * deviation)

    def _with(self, added: float) -> tuple[float, float]:
        """Return difference and standard deviation with `added` episodes in each of four counts."""
        test = self.test
        first, second = test.only_first + added, test.only_second + added
        total = test.both + test.neither + 2 * added + first + second
        value = (first - second) / total
        return value, math.sqrt(max(0.0, first + second - total * value**2)) / total


def paired_difference(first: Iterable[Choices], second: Iterable[Choices]) -> Difference | None:
    """Compare two variants at one gap, with their memories live.

    A pair is one initial state of one task, with policies of one training seed. None if the two
    have no evaluation in common.
    """
    theirs = {_key(each): each.each for each in second if each.probe == LIVE}
    pairs: dict[int, list[tuple[bool, bool]]] = {}
    for each in first:
        other = theirs.get(_key(each))
        if each.each is not None and other is not None:
            pairs.setdefault(each.seed, []).extend(
                (one == "1", two == "1") for one, two in zip(each.each, other, strict=False)
            )
    if not pairs:
        return None
    everything = [pair for of_seed in pairs.values() for pair in of_seed]
    test = mcnemar_exact([one for one, _ in everything], [two for _, two in everything])
    by_seed = {seed: sum(one - two for one, two in of) / len(of) for seed, of in pairs.items()}
    return Difference(test, by_seed)


def _key(each: Choices) -> tuple[int, str, int, int]:
    return each.seed, each.task, each.gap, each.first_seed
