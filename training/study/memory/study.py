"""Runs `ttm study memory` and prints its tables."""

from __future__ import annotations

from ttm.training.study.memory.level import MemoryLevel
from ttm.training.study.memory.options import MemoryOptions
from ttm.training.study.memory.recalling_policy import RecallingPolicy, recall_and_cloning_loss
from ttm.training.study.memory.report import NOTES, figures, heading, result_table
from ttm.training.study.memory.settings import MemorySettings
from ttm.training.study.minigrid.comparison import common_values, compare
from ttm.training.study.minigrid.plot import panels_of, write_plot
from ttm.training.study.minigrid.train_and_evaluate import Method
from ttm.training.study.output import print_results


def run(options: MemoryOptions) -> int:
    """Run the study and return the exit code.

    The tables hold all results of the same settings that are kept in the folder, also those of
    earlier commands. Raises `UserError` for an unknown level and for core options that do not fit.
    """
    level = MemoryLevel(options.level)
    max_steps = level.environment().max_steps
    settings = MemorySettings(**common_values(options), recall=options.recall)
    method = Method(RecallingPolicy, recall_and_cloning_loss(options.recall))
    compared = compare(options, settings, level, method)
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
