"""Assembles and runs a training from its options: policy, batches, trainer."""

from __future__ import annotations

import datetime
import os
import shlex
import shutil
import sys
from dataclasses import replace

import torch
from lightning.fabric import Fabric
from rich.console import Console

from ttm.datasets.instructions import embed_instructions
from ttm.datasets.observations.member_table import member_lines
from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.tick_weights import tick_weights
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.policy.cores.configs import core_name
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import checkpoint_path
from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.frozen_vision.feature_cache import (
    EpisodeFeatures,
    FeatureCache,
    freeze_vision,
    without_cameras,
)
from ttm.training.cloning.loop.resume import comparable, require_same_options
from ttm.training.cloning.loop.run_log import RunLog
from ttm.training.cloning.loop.trainer import BEST, LAST, Trainer, TrainerConfig, resume_path
from ttm.training.cloning.loop.validation import EpisodeErrors
from ttm.training.cloning.memory_start import memory_start
from ttm.training.cloning.network_choice import (
    chosen_network,
    require_same_core,
    require_same_head,
    with_chosen_core,
)
from ttm.training.cloning.options import FINE_TUNING, LEARNING_RATES, TrainOptions
from ttm.training.cloning.recall.codes import tick_codes
from ttm.training.cloning.recall.recall_loss import RecallLoss
from ttm.training.cloning.recall.targets import RecallTargets
from ttm.training.cloning.training_data import Data, open_data
from ttm.training.cloning.worker_processes import default_workers, require_room
from ttm.training.common.allocator import keep_freed_memory
from ttm.training.common.folders import make_folder
from ttm.training.common.schedule import Budget, WarmupCosine

DEFAULT_MINUTES = 60.0
"""Length of a training that is given neither steps nor minutes."""

NEW_CORE = "the core is new, with random weights; all else begins as {} has it"


def train(options: TrainOptions, features: FeatureCache | None = None) -> int:
    """Run a training; return the exit code. `options` have passed `TrainOptions.check`.

    features: made by an earlier training from the same frozen vision, so that features of frames
    that it knows are not computed again; None to compute them all.
    """
    console = Console(stderr=True)
    keep_freed_memory()
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    _require_free(options)
    trainer = assembled(options, console, features)
    with RunLog(options.out / "tensorboard", console, trainer.progress.step, trainer.used()) as log:
        return trainer.run(log)


def assembled(
    options: TrainOptions, console: Console, features: FeatureCache | None = None
) -> Trainer:
    """Return the trainer of `options`, as `train` runs it; write no files.

    What is trained, and on what, is printed on `console`.
    """
    checkpoint = _checkpoint(options, console)
    data = open_data(options, checkpoint)
    for note in data.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
    for line in member_lines(data.training.members):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    policy = _policy(options, checkpoint, data)
    fabric = _fabric(options)
    cache = _feature_cache(options, fabric.to_device(policy), data, features)
    trainer = _trainer(options, policy, data, cache, fabric)
    console.print(_summary(options, policy, data, trainer), highlight=False, soft_wrap=True)
    if cache is not None:
        console.print(f"vision is frozen: {cache.summary()}", highlight=False, soft_wrap=True)
    return trainer


def _require_free(options: TrainOptions) -> None:
    """Make the folder. Raise `UserError` if it holds a training that would be overwritten."""
    out = options.out
    if options.overwrite:
        for name in ("resume", "tensorboard"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (BEST, LAST, "result.json"):
            (out / name).unlink(missing_ok=True)
    elif not options.resume and resume_path(out).exists():
        raise UserError(
            f"{out} holds a training; go on with it by --resume, or give --overwrite or another --out"
        )
    make_folder(out)


def _checkpoint(options: TrainOptions, console: Console) -> Policy | None:
    """Return the policy to resume or to fine-tune, or None for a new one."""
    if options.resume:
        require_same_options(options, resume_path(options.out))
        last = options.out / LAST
        policy = load_checkpoint(last)[0]
        require_same_core(policy.config, options.core, options.core_options, str(last))
        require_same_head(policy.config, options.head_options, str(last))
        return policy
    if options.init is None:
        return None
    loaded = load_checkpoint(checkpoint_path(options.init))[0]
    require_same_head(loaded.config, options.head_options, str(options.init))
    torch.manual_seed(options.seed)  # for the random weights of a new core
    policy = with_chosen_core(loaded, options.core, options.core_options, options.sight_tokens)
    if policy is not loaded:
        console.print(f"note: {NEW_CORE.format(options.init)}", highlight=False, soft_wrap=True)
    return policy


def _policy(options: TrainOptions, checkpoint: Policy | None, data: Data) -> Policy:
    """Return a new policy or the checkpoint's.

    The latter keeps its own normalisation unless --new-statistics.
    """
    torch.manual_seed(options.seed)
    policy = checkpoint
    if policy is None:
        network = chosen_network(
            options.preset,
            options.core,
            options.core_options,
            options.head_options,
            options.sight_tokens,
        )
        policy = Policy(data.spec, network)
    if checkpoint is None or (options.new_statistics and not options.resume):
        policy.normalizer.set_statistics(dataset_statistics(data.training))
    for part in (data.training, data.validation):
        if len(part):
            texts = [episode.instruction for episode in part]
            policy.known_instructions |= dict(
                zip(texts, embed_instructions(list(part)), strict=True)
            )
    return policy


def _feature_cache(
    options: TrainOptions, policy: Policy, data: Data, known: FeatureCache | None
) -> FeatureCache | None:
    """Freeze vision and return the cache for its features, if the options ask for it."""
    if not options.vision.freeze_vision:
        return None
    freeze_vision(policy)
    return FeatureCache(policy, data.spec.cameras) if known is None else known


def _trainer(
    options: TrainOptions, policy: Policy, data: Data, cache: FeatureCache | None, fabric: Fabric
) -> Trainer:
    """Return the trainer with its data in memory, at the step where a resumed training stopped."""
    source = _source(options, data, cache)
    statistics = dataset_statistics(data.training).actions
    parts = {"validation": data.validation, "training": data.training}
    errors = {
        name: EpisodeErrors.of(part, statistics, data.resize_to, cache=cache)
        for name, part in parts.items()
        if len(part)
    }
    config, recall = _config(options, data), _recall_loss(options, policy, source)
    trainer = Trainer(policy, source, errors, config, options.out, fabric, recall)
    if options.resume:
        trainer.resume(resume_path(options.out))
    return trainer


def _source(options: TrainOptions, data: Data, cache: FeatureCache | None) -> BatchSource:
    """Return the source of batches, with frames or with the features of frozen vision."""
    features = None
    if cache is not None:
        versions = options.vision.augmented_versions
        features = cache.features(data.training, versions, options.augmentation, options.seed)
    windows = _windows(options, data, frozen=features is not None)
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
            data.training, changes=weighs.weigh_changes, starts=weighs.weigh_starts
        ),
        features=features,
        recall=_recall_targets(options, features, windows),
        workers=_workers(options, windows),
    )


def _workers(options: TrainOptions, windows: WindowDataset) -> int:
    """Return how many processes make the batches; none where all that they need is in memory."""
    if options.vision.freeze_vision or (options.workers is None and windows.frames.in_memory):
        return 0
    ticks = windows.window + memory_start(options.memory_start, options.window).burn_in
    size = windows.frames.tick_bytes * ticks * options.batch_size
    if options.workers is None:
        return default_workers(size)
    require_room(options.workers, size)
    return options.workers


def _windows(options: TrainOptions, data: Data, *, frozen: bool) -> WindowDataset:
    episodes = without_cameras(data.training) if frozen else data.training
    resize_to = {} if frozen else data.resize_to
    if options.window != "episode":
        return WindowDataset(episodes, options.window, pad="both", resize_to=resize_to)
    longest = max(episode.num_samples for episode in episodes)
    return WindowDataset(episodes, longest, pad="none", resize_to=resize_to)


def _recall_targets(
    options: TrainOptions, features: EpisodeFeatures | None, windows: WindowDataset
) -> RecallTargets | None:
    if features is None or not options.loss.recall_weight:
        return None
    lengths = windows.episode_lengths
    return RecallTargets(tick_codes(features, lengths, options.seed), lengths)


def _recall_loss(options: TrainOptions, policy: Policy, source: BatchSource) -> RecallLoss | None:
    if source.recall is None:
        return None
    torch.manual_seed(options.seed)
    return RecallLoss(policy.config.width, source.recall.size, options.loss.recall_weight)


def _config(options: TrainOptions, data: Data) -> TrainerConfig:
    budget = options.budget
    return TrainerConfig(
        budget=replace(budget, minutes=DEFAULT_MINUTES) if budget == Budget() else budget,
        schedule=WarmupCosine(_learning_rate(options)),
        weight_decay=options.optimization.weight_decay,
        average_decay=options.optimization.average_decay,
        validations=options.validations,
        seed=options.seed,
        options=comparable(options),
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


def _fabric(options: TrainOptions) -> Fabric:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda, but PyTorch sees no GPU here; give --device cpu, or install its CUDA build"
        )
    precision = "bf16-mixed" if options.precision == "bf16" else "32-true"
    return Fabric(accelerator=options.device, devices=1, precision=precision)


def _summary(options: TrainOptions, policy: Policy, data: Data, trainer: Trainer) -> str:
    """Return one line that tells what is trained, on what, and where."""
    millions = sum(parameter.numel() for parameter in policy.parameters()) / 1e6
    cameras = ", ".join(
        f"{camera.name} {camera.width}x{camera.height}" for camera in data.spec.cameras
    )
    vision = policy.vision.weights_used if policy.vision is not None else "none"
    start = f", from {options.init}" if options.init else ""
    start = f", from step {trainer.progress.step}" if options.resume else start
    return (
        f"{len(data.training)} episodes ({data.training.num_ticks} ticks) to train on, "
        f"{len(data.validation)} held out; cameras {cameras or 'none'}; {millions:.2f} million weights "
        f"(core: {core_name(policy.config.core)}, vision: {vision}) on "
        f"{trainer.device}{start}"
    )
