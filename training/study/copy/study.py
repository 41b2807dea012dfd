"""Runs `ttm study copy`: trains every core at every length with every seed."""

from __future__ import annotations

from ttm.training.common.progress import print_progress
from ttm.training.study.copy.core_sizes import copy_core
from ttm.training.study.copy.options import CopyOptions
from ttm.training.study.copy.report import copy_table, figures, notes, progress_line
from ttm.training.study.copy.training import train_copy
from ttm.training.study.output import print_results
from ttm.training.study.symbol_study import prepare_process


def run(options: CopyOptions) -> int:
    """Run the study and return the exit code.

    Raises `UserError` for core options that do not fit.
    """
    configs = {name: copy_core(name, options.core_options) for name in options.core}
    prepare_process(options.threads)
    results = [
        train_copy(
            name,
            config,
            blanks,
            seed,
            options,
            lambda result: print_progress(progress_line(result)),
        )
        for name, config in configs.items()
        for blanks in options.lengths
        for seed in options.seeds
    ]
    print_results(
        notes(options),
        copy_table(results, options.unique, options.shortest),
        figures=figures(configs, options, results),
        json_path=options.json,
    )
    return 0
