"""The work of a study: demonstrations, and the training and evaluation of every core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.study.minigrid.core_sizes import equal_core
from ttm.training.study.minigrid.demonstrations import Demonstrations, load_or_record
from ttm.training.study.minigrid.environment import minigrid_version
from ttm.training.study.minigrid.level import Level
from ttm.training.study.minigrid.options import MinigridOptions
from ttm.training.study.minigrid.results import CoreResult, ResultFolder, StudySettings
from ttm.training.study.minigrid.train_and_evaluate import Method, train_and_evaluate


@dataclass(frozen=True)
class Comparison:
    """All results of the same settings that are kept in the folder, also those of earlier commands."""

    settings: StudySettings
    demonstrations: Demonstrations
    results: Sequence[CoreResult]


def compare(
    options: MinigridOptions, settings: StudySettings, level: Level, method: Method
) -> Comparison:
    """Train and evaluate the cores that have no result yet; return all results.

    settings: made of `options`, with what the study adds to them. level: the one that they name.
    Raises `UserError` for an unknown level and for core options that do not fit.
    """
    level.environment()  # raises here, before anything is recorded
    torch.set_num_threads(options.threads)
    configs = {name: equal_core(name, options.width, options.core_options) for name in options.core}
    demonstrations = load_or_record(level, settings.demonstrations, options.cache, options.workers)
    folder = ResultFolder(options.cache / "results", settings)
    for name, config in configs.items():
        label = " ".join((name, *options.core_options))
        known = folder.find(label)
        if options.again or known is None or not is_of(known, config):
            folder.save(train_and_evaluate(label, config, level, demonstrations, settings, method))
    return Comparison(settings, demonstrations, folder.all())


def common_values(options: MinigridOptions) -> dict[str, Any]:
    """Return the values of `StudySettings` that `options` ask for."""
    return {
        "level": options.level,
        **asdict(options.effort),
        "learning_rate": options.learning_rate,
        "width": options.width,
        "seed": options.seed,
        "episodes": options.episodes,
        "actions": options.actions,
        "minigrid": minigrid_version(),
    }


def is_of(result: CoreResult, config: CoreConfig) -> bool:
    """Return whether a kept result is one of `config`.

    A field that did not exist when the result was made counts as its default, which is what cores
    did before.
    """
    return {**asdict(type(config)()), **result.config} == asdict(config)
