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
from ttm.training.cloning.loop.resume import read_header
from ttm.training.cloning.loop.run_folder import resume_path
from ttm.training.cloning.memory_start import MemoryStart, memory_start
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.processes.group import Processes
from ttm.training.cloning.recall.codes import tick_codes
from ttm.training.cloning.recall.targets import RecallTargets
from ttm.training.cloning.training_data import Data
from ttm.training.cloning.worker_processes import default_workers, require_room

SECTIONS_APART = 24
"""Batches from one window of a section to the next with --shuffle auto: 1, 2, 3, 4, 6 and 8 workers
divide it."""


def batch_source(
    options: TrainOptions,
    data: Data,
    windows: WindowDataset,
    cache: FeatureCache | None,
    network: PolicyConfig,
    form: RelativeActions | None = None,
    processes: Processes | None = None,
    device: torch.device | None = None,
) -> BatchSource:
    """Return the source of batches, with frames or with the features of frozen vision.

    windows: those of `training_windows`. network: that of the policy. form: in which it predicts
    actions; None for that of the robot. processes: those that share each batch; None for one alone.
    device: where it is trained on; None for the CPU.
    """
    processes = Processes() if processes is None else processes
    features = None
    if cache is not None:
        versions = options.vision.augmented_versions
        features = cache.features(data.training, versions, options.augmentation, options.seed)
    apart = sections_apart(options, processes.from_first(windows.frames.in_memory))
    memory = memory_start(options.memory_start, options.window, apart)
    weighs = options.loss
    return BatchSource(
        windows,
        options.batch_size,
        options.seed,
        dropout=options.input_dropout,
        loss=options.loss,
        augmentation=options.augmentation if options.augment and features is None else None,
        memory=memory,
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
        workers=_workers(options, windows, memory, processes),
        processes=processes,
        device=device,
    )


def reading_notes(source: BatchSource) -> list[str]:
    """Return in words how frames are read that do not fit into memory."""
    recent = source.recent_frames()
    if recent is None:
        return []
    gib = recent.ticks * source.windows.frames.tick_bytes * max(1, source.workers) / 2**30
    note = f"frames are read from the files, with --shuffle {source.memory.apart}; up to {gib:.2f} GiB "
    if recent.portion == 1:
        return [note + "keep those that windows have in common"]
    return [
        note
        + f"keep {recent.portion:.0%} of those that windows have in common, since not more memory is "
        "free; a smaller --shuffle or --batch-size needs less"
    ]


def sections_apart(options: TrainOptions, in_memory: bool) -> int | None:
    """Return how many batches are between two windows of a section by --shuffle; None for no sections.

    A training that is resumed goes on as it began, whether or not the frames are in memory now.
    """
    chosen = options.shuffle
    if chosen == "auto" and options.resume:
        chosen = read_header(resume_path(options.out)).get("shuffle", "all")
    if chosen == "auto":
        overlapping = memory_start(options.memory_start, options.window).overlapping
        chosen = SECTIONS_APART if overlapping and not in_memory else "all"
    return None if chosen == "all" else chosen


def _workers(
    options: TrainOptions, windows: WindowDataset, memory: MemoryStart, processes: Processes
) -> int:
    """Return how many processes make the batches; none where all that they need is in memory."""
    if options.vision.freeze_vision or (options.workers is None and windows.frames.in_memory):
        return 0
    ticks = windows.window + memory.burn_in
    size = windows.frames.tick_bytes * ticks * -(-options.batch_size // processes.count)
    if options.workers is None:
        return default_workers(size, processes.on_machine, memory.apart)
    require_room(options.workers, size)
    return options.workers


def training_windows(
    options: TrainOptions, data: Data, processes: Processes, *, frozen: bool
) -> WindowDataset:
    """Return the windows to train on. frozen: without frames, in whose place are features."""
    episodes = without_cameras(data.training) if frozen else data.training
    whole = options.window == "episode"
    longest = max(episode.num_samples for episode in episodes)
    return WindowDataset(
        episodes,
        longest if options.window == "episode" else options.window,
        pad="none" if whole else "both",
        resize_to={} if frozen else data.resize_to,
        shares=None if data.sets is None else data.sets.shares,
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
