"""Runs `ttm study memory` and prints its tables."""

from __future__ import annotations

from ttm.training.study.memory.level import MemoryLevel
from ttm.training.study.memory.options import MemoryOptions
from ttm.training.study.memory.policy import MemoryPolicy
from ttm.training.study.memory.report import NOTES, figures, heading, result_table
from ttm.training.study.minigrid.comparison import compare
from ttm.training.study.minigrid.plot import panels_of, write_plot
from ttm.training.study.output import print_results


def run(options: MemoryOptions) -> int:
    """Run the study and return the exit code.

    The tables hold all results of the same settings that are kept in the folder, also those of
    earlier commands. Raises `UserError` for an unknown level and for core options that do not fit.
    """
    level = MemoryLevel(options.level)
    max_steps = level.environment().max_steps
    compared = compare(options, level, MemoryPolicy)
    print_results(
        heading(compared),
        *(result_table(compared.results, way, max_steps) for way in options.actions),
        NOTES,
        figures=figures(compared, max_steps),
        json_path=options.json,
    )
    if options.plot is not None:
        write_plot(options.plot, panels_of(options.level, options.actions, compared.results))
    return 0
