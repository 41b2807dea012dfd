"""Runs `ttm study listops`: trains every core with every seed, and prints the results."""

from __future__ import annotations

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.fit import Progress
from ttm.training.common.progress import print_progress
from ttm.training.study.listops.core_sizes import listops_core
from ttm.training.study.listops.options import ListopsOptions
from ttm.training.study.listops.report import (
    figures,
    guesses,
    listops_table,
    notes,
    progress_line,
)
from ttm.training.study.listops.task import Expression
from ttm.training.study.listops.training import ListopsResult, train_listops
from ttm.training.study.output import print_results
from ttm.training.study.symbol_study import prepare_process


def run(options: ListopsOptions) -> int:
    """Run the study and return the exit code.

    Raises `UserError` for core options that do not fit, and if there are too few different
    expressions.
    """
    configs = {
        name: listops_core(name, options.max_length, options.core_options) for name in options.core
    }
    expressions = options.task.make(options.held_out + options.samples, options.data_seed)
    held_out, train = expressions[: options.held_out], expressions[options.held_out :]
    prepare_process(options.threads)
    results = [
        _train(name, config, train, held_out, seed, options)
        for name, config in configs.items()
        for seed in options.seeds
    ]
    guessed = guesses(train, held_out)
    print_results(
        notes(train, held_out, options, results),
        listops_table(guessed, results),
        figures=figures(configs, options, guessed, results),
        json_path=options.json,
    )
    return 0


def _train(
    name: str,
    config: CoreConfig,
    train: list[Expression],
    held_out: list[Expression],
    seed: int,
    options: ListopsOptions,
) -> ListopsResult:
    def report(progress: Progress) -> None:
        print_progress(progress_line(name, seed, progress, options.steps))

    return train_listops(name, config, train, held_out, seed, options, report)
