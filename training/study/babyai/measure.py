"""One core of `ttm study babyai`: trained on the demonstrations, then let act."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.study.babyai.cores import num_parameters
from ttm.training.study.babyai.demos import FIRST_EVALUATION_SEED, Demonstrations
from ttm.training.study.babyai.policy import BabyaiPolicy, Vocabulary
from ttm.training.study.babyai.report import Acting, Result, Settings
from ttm.training.study.babyai.rollout import roll_out
from ttm.training.study.babyai.training import EpisodeBatches, Progress, clone

REPORT_EVERY = 100
DRAWN = "drawn"


def measure(label: str, config: CoreConfig, shown: Demonstrations, settings: Settings) -> Result:
    """Weights, batches and actions depend on `settings.seed` alone. Says on stderr where it stands."""
    torch.manual_seed(settings.seed)
    vocabulary = Vocabulary.of(shown.missions, shown.images)
    policy = BabyaiPolicy(config, vocabulary, settings.width)
    batches = EpisodeBatches(shown, vocabulary, settings.batch_ticks).endless(settings.seed)
    progress = Progress(0, float("nan"), 0.0)
    for progress in clone(policy, batches, settings.steps, settings.learning_rate, REPORT_EVERY):
        done = f"step {progress.steps:,} of {settings.steps:,}, loss {progress.loss:.4f}"
        print(f"{label}: {done}, {progress.seconds:.0f} s", file=sys.stderr)
    return Result(
        core=label,
        config=asdict(config),
        parameters=num_parameters(config, settings.width),
        all_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        loss=progress.loss,
        training_s=progress.seconds,
        acting={
            way: _let_act(label, policy, vocabulary, settings, way) for way in settings.actions
        },
    )


def _let_act(
    label: str, policy: BabyaiPolicy, vocabulary: Vocabulary, settings: Settings, way: str
) -> Acting:
    begun = time.perf_counter()
    seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + settings.episodes)
    sample = settings.seed if way == DRAWN else None
    outcomes = roll_out(policy, vocabulary, settings.level, seeds, sample)
    acting = Acting(
        [outcome.success for outcome in outcomes],
        [outcome.steps for outcome in outcomes],
        time.perf_counter() - begun,
    )
    print(
        f"{label}: {100 * acting.rate:.1f} % of {settings.episodes} episodes ({way})",
        file=sys.stderr,
    )
    return acting
