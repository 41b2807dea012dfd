"""Runs `ttm study babyai` and prints its tables."""

from __future__ import annotations

from ttm.training.study.babyai.level import BabyaiLevel
from ttm.training.study.babyai.options import BabyaiOptions
from ttm.training.study.babyai.report import NOTES, figures, heading, result_table
from ttm.training.study.minigrid.comparison import common_values, compare
from ttm.training.study.minigrid.plot import panels_of, write_plot
from ttm.training.study.minigrid.results import StudySettings
from ttm.training.study.minigrid.train_and_evaluate import Method
from ttm.training.study.output import print_results


def run(options: BabyaiOptions) -> int:
    """Run the study and return the exit code.

    The tables hold all results of the same settings that are kept in the folder, also those of
    earlier commands. Raises `UserError` for an unknown level and for core options that do not fit.
    """
    settings = StudySettings(**common_values(options))
    compared = compare(options, settings, BabyaiLevel(options.level), Method())
    print_results(
        heading(compared.settings, compared.demonstrations),
        *(result_table(compared.results, way) for way in options.actions),
        NOTES,
        figures=figures(compared.settings, compared.demonstrations, compared.results),
        json_path=options.json,
    )
    if options.plot is not None:
        write_plot(options.plot, panels_of(options.level, options.actions, compared.results))
    return 0
