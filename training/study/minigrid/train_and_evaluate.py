"""One core of a study: trained on the demonstrations, then evaluated on new episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.core_sizes import num_parameters
from ttm.training.common.progress import print_progress
from ttm.training.study.minigrid.cloning import EpisodeSampler, clone, cloning_loss
from ttm.training.study.minigrid.demonstrations import FIRST_EVALUATION_SEED, Demonstrations
from ttm.training.study.minigrid.level import Level
from ttm.training.study.minigrid.policy import MinigridPolicy, Vocabulary
from ttm.training.study.minigrid.results import ActingResult, CoreResult, StudySettings
from ttm.training.study.minigrid.rollout import roll_out

REPORT_EVERY = 100
"""Steps between two lines of progress."""
DRAWN = "drawn"


@dataclass(frozen=True)
class Method:
    """What a study builds around every core, and how it trains that."""

    policy: Callable[[CoreConfig, Vocabulary, int], MinigridPolicy] = MinigridPolicy
    loss: Callable[..., Tensor] = cloning_loss
    """See `clone`."""


def train_and_evaluate(
    label: str,
    config: CoreConfig,
    level: Level,
    demonstrations: Demonstrations,
    settings: StudySettings,
    method: Method,
) -> CoreResult:
    """Train `config`, called `label`, and let it act in the episodes of the evaluation.

    Weights, batches and actions depend on `settings.seed` alone. Prints progress on stderr.
    """
    torch.manual_seed(settings.seed)
    vocabulary = Vocabulary.of(demonstrations.missions, demonstrations.images)
    policy = method.policy(config, vocabulary, settings.width)
    sampler = EpisodeSampler(demonstrations, vocabulary, settings.batch_ticks)
    batches = sampler.endless(settings.seed)
    for progress in clone(
        policy, batches, settings.steps, settings.learning_rate, REPORT_EVERY, method.loss
    ):
        done = f"step {progress.steps:,} of {settings.steps:,}, loss {progress.mean_loss:.4f}"
        print_progress(f"{label}: {done}, {progress.seconds:.0f} s")
    return CoreResult(
        core=label,
        config=asdict(config),
        parameters=num_parameters(config, settings.width),
        all_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        loss=progress.mean_loss,
        training_s=progress.seconds,
        acting={
            way: _act(label, policy, vocabulary, level, settings, way) for way in settings.actions
        },
    )


def _act(
    label: str,
    policy: MinigridPolicy,
    vocabulary: Vocabulary,
    level: Level,
    settings: StudySettings,
    way: str,
) -> ActingResult:
    begun = time.perf_counter()
    seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + settings.episodes)
    sample = settings.seed if way == DRAWN else None
    episodes = roll_out(policy, vocabulary, level, seeds, sample)
    acting = ActingResult(
        [episode.success for episode in episodes],
        [episode.steps for episode in episodes],
        time.perf_counter() - begun,
    )
    print_progress(f"{label}: {100 * acting.rate:.1f} % of {settings.episodes} episodes ({way})")
    return acting
