"""The notes, the tables and the figures of `ttm study memory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.sim.evaluation.intervals import wilson_interval
from ttm.training.common.tables import compact_table
from ttm.training.study.memory.choices import Choices
from ttm.training.study.minigrid.comparison import Comparison
from ttm.training.study.minigrid.results import ActingResult, CoreResult
from ttm.training.study.minigrid.significance import p_value_against_no_memory

TITLES: Mapping[str, str] = MappingProxyType(
    {"best": "Acting by the highest score", "drawn": "Acting by drawn actions"}
)
"""How a policy acts -> title of its table."""
COLUMNS = ("core", "success in %", "p", "made", "right choices in %", "s")
NOTES = """\
success: the agent stepped to the matching object. made: episodes in which it stepped to one of the
two objects; right choices: portion of these in which it was the matching one, 50 % for a guess. In
parentheses: Wilson's 95 % interval over the episodes, which does not say how much another training
of the same core would differ. p: McNemar's exact test of the successes against the core without
memory, on the same episodes. s: seconds of training."""


def heading(compared: Comparison) -> str:
    """Return the text above the tables: demonstrations, training, and evaluation."""
    settings, shown = compared.settings, compared.demonstrations
    sizes = [result.parameters for result in compared.results]
    return (
        f"MiniGrid {settings.level} (minigrid {settings.minigrid}): cloning of a scripted expert, "
        f"{settings.episodes} episodes\n"
        f"{len(shown):,} demonstrations, mean length {shown.lengths.mean():.1f}; "
        f"the expert fails in {len(shown.skipped):,}\n"
        f"{settings.steps:,} steps of {settings.batch_ticks:,} ticks, width {settings.width}, "
        f"seed {settings.seed}; cores of {min(sizes):,} to {max(sizes):,} parameters"
    )


def result_table(results: Sequence[CoreResult], way: str, max_steps: int) -> Table:
    """Return a table with one row for each core, the best first.

    way: how the policies acted, a key of `TITLES`. max_steps: see `Choices.of`.
    """
    table = compact_table(TITLES[way], COLUMNS)
    table.columns[0].no_wrap = False  # the names of variants are long
    for result in sorted(results, key=lambda result: -result.acting[way].rate):
        acting = result.acting[way]
        choices = Choices.of(acting, max_steps)
        table.add_row(
            result.core,
            _percent(choices.right, len(acting.success)),
            p_value_against_no_memory(result, results, way),
            str(choices.made),
            _percent(choices.right, choices.made),
            f"{result.training_s:.0f}",
        )
    return table


def figures(compared: Comparison, max_steps: int) -> dict[str, Any]:
    """Return all figures as plain data, with the results of every episode."""
    return {
        "settings": asdict(compared.settings),
        "expert": {
            "demonstrations": len(compared.demonstrations),
            "mean_length": float(compared.demonstrations.lengths.mean()),
            "seeds_not_solved": compared.demonstrations.skipped,
        },
        "results": [
            asdict(result)
            | {"rates": {way: _rates(acting, max_steps) for way, acting in result.acting.items()}}
            for result in compared.results
        ],
    }


def _rates(acting: ActingResult, max_steps: int) -> dict[str, Any]:
    choices = Choices.of(acting, max_steps)
    return {
        "successes": _counted(choices.right, len(acting.success)),
        "choices": _counted(choices.right, choices.made),
    }


def _counted(count: int, total: int) -> dict[str, Any]:
    """Return count, total, and rate with its interval; both None if there is nothing to count."""
    rate = count / total if total else None
    return {
        "count": count,
        "of": total,
        "rate": rate,
        "interval": wilson_interval(count, total) if total else None,
    }


def _percent(count: int, total: int) -> str:
    """Return a rate in per cent, with its interval in parentheses."""
    if not total:
        return "—"
    low, high = (100 * bound for bound in wilson_interval(count, total))
    return f"{100 * count / total:.1f} ({low:.1f} to {high:.1f})"
