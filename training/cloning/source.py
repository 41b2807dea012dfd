"""The source of batches that the options ask for."""

from __future__ import annotations

import torch

from ttm.datasets.windows.tick_weights import tick_weights
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.policy.network.presets import PolicyConfig
from ttm.policy.network.relative.relative_actions import RelativeActions
from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.frozen_vision.feature_cache import (
    EpisodeFeatures,
    FeatureCache,
    without_cameras,
)
from ttm.training.cloning.memory_start import memory_start
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.processes.group import Processes
from ttm.training.cloning.recall.codes import tick_codes
from ttm.training.cloning.recall.targets import RecallTargets
from ttm.training.cloning.training_data import Data
from ttm.training.cloning.worker_processes import default_workers, require_room


def batch_source(
    options: TrainOptions,
    data: Data,
    cache: FeatureCache | None,
    network: PolicyConfig,
    form: RelativeActions | None = None,
    processes: Processes | None = None,
    device: torch.device | None = None,
) -> BatchSource:
    """Return the source of batches, with frames or with the features of frozen vision.

    network: that of the policy. form: in which it predicts actions; None for that of the robot.
    processes: those that share each batch; None for one alone. device: where it is trained on; None
    for the CPU.
    """
    processes = Processes() if processes is None else processes
    features = None
    if cache is not None:
        versions = options.vision.augmented_versions
        features = cache.features(data.training, versions, options.augmentation, options.seed)
    windows = _windows(options, data, processes, frozen=features is not None)
    weighs = options.loss
    return BatchSource(
        windows,
        options.batch_size,
        options.seed,
        dropout=options.input_dropout,
        loss=options.loss,
        augmentation=options.augmentation if options.augment and features is None else None,
        memory=memory_start(options.memory_start, options.window),
        tick_weights=tick_weights(
            data.training,
            changes=weighs.weigh_changes,
            starts=weighs.weigh_starts,
            policy=weighs.weigh_policy,
        ),
        features=features,
        recall=_recall_targets(options, features, windows, processes),
        chunk=network.chunk,
        form=form,
        longest_delay_s=network.longest_delay_s,
        workers=_workers(options, windows, processes),
        processes=processes,
        device=device,
    )


def _workers(options: TrainOptions, windows: WindowDataset, processes: Processes) -> int:
    """Return how many processes make the batches; none where all that they need is in memory."""
    if options.vision.freeze_vision or (options.workers is None and windows.frames.in_memory):
        return 0
    ticks = windows.window + memory_start(options.memory_start, options.window).burn_in
    size = windows.frames.tick_bytes * ticks * -(-options.batch_size // processes.count)
    if options.workers is None:
        return default_workers(size, processes.on_machine)
    require_room(options.workers, size)
    return options.workers


def _windows(
    options: TrainOptions, data: Data, processes: Processes, *, frozen: bool
) -> WindowDataset:
    episodes = without_cameras(data.training) if frozen else data.training
    resize_to = {} if frozen else data.resize_to
    shares = None if data.sets is None else data.sets.shares
    if options.window != "episode":
        return WindowDataset(
            episodes,
            options.window,
            pad="both",
            resize_to=resize_to,
            shares=shares,
            copies=processes.on_machine,
        )
    longest = max(episode.num_samples for episode in episodes)
    return WindowDataset(
        episodes,
        longest,
        pad="none",
        resize_to=resize_to,
        shares=shares,
        copies=processes.on_machine,
    )


def _recall_targets(
    options: TrainOptions,
    features: EpisodeFeatures | None,
    windows: WindowDataset,
    processes: Processes,
) -> RecallTargets | None:
    if features is None or not options.loss.recall_weight:
        return None
    lengths = windows.episode_lengths
    # Those of the first process: elsewhere rounding may turn the sign of a component around.
    codes = processes.from_first(tick_codes(features, lengths, options.seed))
    return RecallTargets(codes, lengths)
