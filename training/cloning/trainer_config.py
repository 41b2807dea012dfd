"""The configuration of the trainer that the options ask for."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.loop.fingerprint import fingerprint
from ttm.training.cloning.loop.same_training import comparable, length
from ttm.training.cloning.loop.trainer import TrainerConfig
from ttm.training.cloning.loop.validation import EpisodeErrors
from ttm.training.cloning.options import FINE_TUNING, LEARNING_RATES, TrainOptions
from ttm.training.cloning.training_data import Data
from ttm.training.common.schedule import Budget, WarmupCosine

DEFAULT_MINUTES = 60.0
"""Length of a training that is given neither steps nor minutes."""


def trainer_config(
    options: TrainOptions, data: Data, source: BatchSource, errors: Mapping[str, EpisodeErrors]
) -> TrainerConfig:
    """Return the configuration of the trainer on `data`, whose windows `source` and `errors` hold."""
    budget, optimizer = options.budget, options.optimizer
    return TrainerConfig(
        budget=replace(budget, minutes=DEFAULT_MINUTES) if budget == Budget() else budget,
        schedule=WarmupCosine(
            _learning_rate(options),
            optimizer.warmup_steps,
            optimizer.longest_warmup,
            optimizer.floor,
        ),
        weight_decay=options.optimization.weight_decay,
        average_decay=options.optimization.average_decay,
        validations=options.validations,
        seed=options.seed,
        facts=_facts(options, data, source, errors),
        optimizer=optimizer,
        keeping=options.keeping,
        accumulate=options.processes.accumulate,
        compiles=options.compile,
        info={
            "command": shlex.join(["ttm", *sys.argv[1:]]),
            "data": data.training.source,
            "training_episodes": len(data.training),
            "training_ticks": data.training.num_ticks,
            "validation_episodes": len(data.validation),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        },
    )


def _learning_rate(options: TrainOptions) -> float:
    if options.optimization.learning_rate is not None:
        return options.optimization.learning_rate
    return LEARNING_RATES[options.preset] * (1.0 if options.init is None else FINE_TUNING)


def _facts(
    options: TrainOptions, data: Data, source: BatchSource, errors: Mapping[str, EpisodeErrors]
) -> dict[str, Any]:
    """Return what a training that resumes this one is compared with."""
    vectors = {**source.windows.vectors, "weights": source.tick_weights}
    found = fingerprint("training", data.training, vectors)
    shares = None if data.sets is None else data.sets.shares
    found["training shares"] = None if shares is None else list(shares.shares)
    if "validation" in errors:
        found |= fingerprint("held-out", data.validation, errors["validation"].windows.vectors)
    return {
        "options": comparable(options),
        "length": length(options),
        "data": found,
        "shuffle": source.memory.apart or "all",
    }
