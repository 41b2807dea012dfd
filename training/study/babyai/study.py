"""Runs `ttm study babyai`: demonstrations, training and evaluation of every core, tables."""

from __future__ import annotations

from dataclasses import asdict

import torch

from ttm.training.study.babyai.core_sizes import equal_core
from ttm.training.study.babyai.demonstrations import load_or_record
from ttm.training.study.babyai.environment import environment_id, minigrid_version
from ttm.training.study.babyai.options import BabyaiOptions
from ttm.training.study.babyai.plot import panels_of, write_plot
from ttm.training.study.babyai.report import NOTES, figures, heading, result_table
from ttm.training.study.babyai.results import BabyaiSettings, ResultFolder
from ttm.training.study.babyai.train_and_evaluate import train_and_evaluate
from ttm.training.study.output import print_results


def run(options: BabyaiOptions) -> int:
    """Run the study and return the exit code.

    The tables hold all results of the same settings that are kept in the folder, also those of
    earlier commands. Raises `UserError` for an unknown level and for core options that do not fit.
    """
    environment_id(options.level)
    torch.set_num_threads(options.threads)
    settings = BabyaiSettings(
        level=options.level,
        **asdict(options.effort),
        learning_rate=options.learning_rate,
        width=options.width,
        seed=options.seed,
        episodes=options.episodes,
        actions=options.actions,
        minigrid=minigrid_version(),
    )
    configs = {name: equal_core(name, options.width, options.core_options) for name in options.core}
    demonstrations = load_or_record(
        options.level, settings.demonstrations, options.cache, options.workers
    )
    folder = ResultFolder(options.cache / "results", settings)
    for name, config in configs.items():
        label = " ".join((name, *options.core_options))
        known = folder.find(label)
        if options.again or known is None or known.config != asdict(config):
            folder.save(train_and_evaluate(label, config, demonstrations, settings))
    results = folder.all()
    print_results(
        heading(settings, demonstrations),
        *(result_table(results, way) for way in options.actions),
        NOTES,
        figures=figures(settings, demonstrations, results),
        json_path=options.json,
    )
    if options.plot is not None:
        write_plot(options.plot, panels_of(options.level, options.actions, results))
    return 0
