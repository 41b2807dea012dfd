"""The notes, the tables and the figures of `ttm study babyai`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.sim.evaluation.intervals import wilson_interval
from ttm.training.common.tables import compact_table
from ttm.training.study.minigrid.demonstrations import Demonstrations
from ttm.training.study.minigrid.results import CoreResult, StudySettings
from ttm.training.study.minigrid.significance import p_value_against_no_memory

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "best": "Acting by the highest score",
        "drawn": "Acting by drawn actions, which helps a policy out of going round in circles",
    }
)
"""How a policy acts -> title of its table."""
COLUMNS = ("core", "parameters", "success\n%", "95 % interval", "p", "ticks", "s")
NOTES = """\
The intervals are Wilson's at 95 %, over the episodes; they do not say how much another training of
the same core would differ. p: McNemar's exact test against the core without memory, on the same
episodes. ticks: mean length of an episode, failed ones included. s: seconds of training."""


def heading(settings: StudySettings, demonstrations: Demonstrations) -> str:
    """Return the text above the tables: demonstrations, training, and evaluation."""
    count = len(demonstrations)
    tried = count + len(demonstrations.skipped)
    return (
        f"BabyAI {settings.level} (minigrid {settings.minigrid}): cloning of its bot, "
        f"{settings.episodes} episodes\n"
        f"{count:,} demonstrations, mean length {demonstrations.lengths.mean():.1f}; "
        f"the bot solves {count:,} of {tried:,} seeds; "
        f"one core records {demonstrations.per_second:.0f} a second\n"
        f"{settings.steps:,} steps of {settings.batch_ticks:,} ticks, width {settings.width}, "
        f"seed {settings.seed}"
    )


def result_table(results: Sequence[CoreResult], way: str) -> Table:
    """Return a table with one row for each core, the best first.

    way: how the policies acted, a key of `TITLES`.
    """
    table = compact_table(TITLES[way], COLUMNS)
    for result in sorted(results, key=lambda result: -result.acting[way].rate):
        acting = result.acting[way]
        low, high = wilson_interval(sum(acting.success), len(acting.success))
        table.add_row(
            result.core,
            f"{result.parameters:,}",
            f"{100 * acting.rate:.1f}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            p_value_against_no_memory(result, results, way),
            f"{fmean(acting.lengths):.1f}",
            f"{result.training_s:.0f}",
        )
    return table


def figures(
    settings: StudySettings, demonstrations: Demonstrations, results: Sequence[CoreResult]
) -> dict[str, Any]:
    """Return all figures as plain data, with the results of every episode."""
    return {
        "settings": asdict(settings),
        "bot": {
            "demonstrations": len(demonstrations),
            "mean_length": float(demonstrations.lengths.mean()),
            "per_second_and_core": demonstrations.per_second,
            "seeds_not_solved": demonstrations.skipped,
        },
        "results": [asdict(result) for result in results],
    }
