"""Runs `ttm study chunks`: trains every model on every vocabulary with every seed."""

from __future__ import annotations

from ttm.training.common.progress import print_progress
from ttm.training.study.chunks.models import chunk_models
from ttm.training.study.chunks.options import ChunksOptions
from ttm.training.study.chunks.report import chunk_table, figures, notes, progress_line
from ttm.training.study.chunks.training import train_chunks
from ttm.training.study.output import print_results
from ttm.training.study.symbol_study import prepare_process


def run(options: ChunksOptions) -> int:
    """Run the study and return the exit code.

    Raises `UserError` for hierarchies or core options that do not fit.
    """
    models = chunk_models(options.core, options.hierarchies, options.core_options)
    prepare_process(options.threads)
    results = []
    for letters in options.vocabularies:
        for model in models:
            for seed in options.seeds:
                results.append(train_chunks(model, letters, seed, options))
                print_progress(progress_line(results[-1]))
    print_results(
        notes(options),
        chunk_table(results),
        figures=figures(models, options, results),
        json_path=options.json,
    )
    return 0
