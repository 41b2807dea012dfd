"""One core of `ttm study babyai`: trained on the demonstrations, then evaluated on new episodes."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.progress import print_progress
from ttm.training.study.babyai.cloning import EpisodeSampler, clone
from ttm.training.study.babyai.core_sizes import num_parameters
from ttm.training.study.babyai.demonstrations import FIRST_EVALUATION_SEED, Demonstrations
from ttm.training.study.babyai.policy import MinigridPolicy, Vocabulary
from ttm.training.study.babyai.results import ActingResult, BabyaiSettings, CoreResult
from ttm.training.study.babyai.rollout import roll_out

REPORT_EVERY = 100
"""Steps between two lines of progress."""
DRAWN = "drawn"


def train_and_evaluate(
    label: str, config: CoreConfig, demonstrations: Demonstrations, settings: BabyaiSettings
) -> CoreResult:
    """Train `config`, called `label`, and let it act in the episodes of the evaluation.

    Weights, batches and actions depend on `settings.seed` alone. Prints progress on stderr.
    """
    torch.manual_seed(settings.seed)
    vocabulary = Vocabulary.of(demonstrations.missions, demonstrations.images)
    policy = MinigridPolicy(config, vocabulary, settings.width)
    sampler = EpisodeSampler(demonstrations, vocabulary, settings.batch_ticks)
    batches = sampler.endless(settings.seed)
    for progress in clone(policy, batches, settings.steps, settings.learning_rate, REPORT_EVERY):
        done = f"step {progress.steps:,} of {settings.steps:,}, loss {progress.mean_loss:.4f}"
        print_progress(f"{label}: {done}, {progress.seconds:.0f} s")
    return CoreResult(
        core=label,
        config=asdict(config),
        parameters=num_parameters(config, settings.width),
        all_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        loss=progress.mean_loss,
        training_s=progress.seconds,
        acting={way: _act(label, policy, vocabulary, settings, way) for way in settings.actions},
    )


def _act(
    label: str, policy: MinigridPolicy, vocabulary: Vocabulary, settings: BabyaiSettings, way: str
) -> ActingResult:
    begun = time.perf_counter()
    seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + settings.episodes)
    sample = settings.seed if way == DRAWN else None
    episodes = roll_out(policy, vocabulary, settings.level, seeds, sample)
    acting = ActingResult(
        [episode.success for episode in episodes],
        [episode.steps for episode in episodes],
        time.perf_counter() - begun,
    )
    print_progress(f"{label}: {100 * acting.rate:.1f} % of {settings.episodes} episodes ({way})")
    return acting
