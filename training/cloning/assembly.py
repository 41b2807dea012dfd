"""Assembles and runs a training from its options: policy, batches, trainer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.fabric import Fabric
from rich.console import Console

from ttm.datasets.instructions import embed_instructions
from ttm.datasets.observations.member_table import member_lines
from ttm.datasets.statistics import dataset_statistics, require_motion
from ttm.policy.cores.configs import core_name
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import checkpoint_path
from ttm.sim.workers.cores import usable_cores
from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.frozen_vision.feature_cache import (
    FeatureCache,
    freeze_vision,
)
from ttm.training.cloning.loop.dry_run import dry_run
from ttm.training.cloning.loop.loggers import Loggers
from ttm.training.cloning.loop.resume import read_header
from ttm.training.cloning.loop.run_folder import CONFIG, LAST, prepare_folder, resume_path
from ttm.training.cloning.loop.run_log import RunLog
from ttm.training.cloning.loop.same_training import (
    Difference,
    require_same_data,
    require_same_options,
)
from ttm.training.cloning.loop.trainer import Trainer
from ttm.training.cloning.loop.validation import EpisodeErrors
from ttm.training.cloning.network_choice import (
    chosen_network,
    require_same_core,
    require_same_form,
    require_same_head,
    with_chosen_parts,
)
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.predicted_statistics import predicted_statistics
from ttm.training.cloning.processes.batch_norm import share_batch_norm
from ttm.training.cloning.processes.group import Processes
from ttm.training.cloning.processes.launch import launched, together
from ttm.training.cloning.recall.recall_loss import RecallLoss
from ttm.training.cloning.settings.config_file import write_config
from ttm.training.cloning.settings.groups import NO_WEIGHTS
from ttm.training.cloning.source import batch_source, reading_notes, training_windows
from ttm.training.cloning.trainer_config import trainer_config
from ttm.training.cloning.training_data import Data, open_data
from ttm.training.common.allocator import keep_freed_memory

NEW_PARTS = "what the options change in the network is new, with random weights; all else begins as {} has it"


def train(options: TrainOptions, features: FeatureCache | None = None) -> int:
    """Run a training; return the exit code. `options` have passed `TrainOptions.check`.

    features: made by an earlier training from the same frozen vision, so that features of frames
    that it knows are not computed again; None to compute them all.
    """
    keep_freed_memory()
    fabric = launched(options)
    processes = Processes.of(fabric)
    console = Console(stderr=True, quiet=not processes.first)
    cores = max(1, usable_cores() // processes.on_machine)
    torch.set_num_threads(options.threads or cores)
    with together(processes):
        if options.dry_run:
            return dry_run(assembled(options, console, features, fabric), console)
        with processes.agreeing():
            if processes.first:
                prepare_folder(options.out, resume=options.resume, overwrite=options.overwrite)
        return _run(options, assembled(options, console, features, fabric), console)


def _run(options: TrainOptions, trainer: Trainer, console: Console) -> int:
    """Run the trainer; the first process alone logs."""
    first = trainer.processes.first
    if first:
        write_config(options.out / CONFIG, options.plain())
    names = options.keeping.logger if first else ()
    loggers = Loggers(names, options.out, trainer.progress.step)
    with RunLog(loggers, console, trainer.used, trainer.processes) as log:
        return trainer.run(log)


def assembled(
    options: TrainOptions,
    console: Console,
    features: FeatureCache | None = None,
    fabric: Fabric | None = None,
) -> Trainer:
    """Return the trainer of `options`, as `train` runs it; write no files.

    What is trained, and on what, is printed on `console`. fabric: with the processes that train;
    None for this one alone.
    """
    fabric = launched(options) if fabric is None else fabric
    processes = Processes.of(fabric)
    with processes.agreeing():
        data, policy = _opened(options, console)
        share_batch_norm(policy, processes, fabric.device)
        cache = _feature_cache(options, fabric.to_device(policy), data, features, processes)
    trainer = _trainer(options, policy, data, cache, fabric)
    if options.resume:
        with processes.agreeing():
            _resume(options, trainer, console)
    console.print(_summary(options, policy, data, trainer), highlight=False, soft_wrap=True)
    for note in reading_notes(trainer.source):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    if cache is not None:
        console.print(f"vision is frozen: {cache.summary()}", highlight=False, soft_wrap=True)
    return trainer


def _opened(options: TrainOptions, console: Console) -> tuple[Data, Policy]:
    """Return the data, and the policy to train on them."""
    checkpoint = _checkpoint(options, console)
    data = open_data(options, checkpoint)
    for note in data.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
    about_sets = () if data.sets is None else data.sets.lines()
    for line in (*member_lines(data.training.members), *about_sets):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return data, _policy(options, checkpoint, data)


def _checkpoint(options: TrainOptions, console: Console) -> Policy | None:
    """Return the policy to resume or to fine-tune, or None for a new one."""
    if options.resume:
        header = read_header(resume_path(options.out))
        _tell_differences(console, require_same_options(options, header))
        last = options.out / LAST
        policy = load_checkpoint(last)[0]
        require_same_core(policy.config, options.core, options.core_options, str(last))
        require_same_head(policy.config, options.head_options, str(last))
        return policy
    if options.init is None:
        return None
    loaded = load_checkpoint(checkpoint_path(options.init))[0]
    require_same_head(loaded.config, options.head_options, str(options.init))
    require_same_form(loaded, options.relative, options.absolute, str(options.init))
    torch.manual_seed(options.seed)  # for the random weights of a new core
    policy = with_chosen_parts(
        loaded,
        options.core,
        options.core_options,
        options.sight_tokens,
        options.sight_cells,
        options.chunk,
        options.delay,
    )
    if policy is not loaded:
        console.print(f"note: {NEW_PARTS.format(options.init)}", highlight=False, soft_wrap=True)
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
            options.sight_cells,
            options.chunk,
            options.vision_weights,
            options.vision_model,
            options.relative,
            options.absolute,
            options.delay,
        )
        policy = Policy(data.spec, network)
        if policy.vision is None:
            _require_no_vision(options)
    if checkpoint is None or (options.new_statistics and not options.resume):
        policy.normalizer.set_statistics(
            dataset_statistics(data.training), predicted_statistics(policy, data.training)
        )
    for part in (data.training, data.validation):
        if len(part):
            texts = [episode.instruction for episode in part]
            policy.known_instructions |= dict(
                zip(texts, embed_instructions(list(part)), strict=True)
            )
    return policy


def _require_no_vision(options: TrainOptions) -> None:
    """Raise `UserError` if the options are about a vision that the policy does not have."""
    given = {
        "--vision-model": options.vision_model,
        "--vision-weights": None
        if options.vision_weights == NO_WEIGHTS
        else options.vision_weights,
    }
    for name, value in given.items():
        if value is not None:
            raise UserError(f"{name} is {value}, but the data have no camera; leave it out")


def _feature_cache(
    options: TrainOptions,
    policy: Policy,
    data: Data,
    known: FeatureCache | None,
    processes: Processes,
) -> FeatureCache | None:
    """Freeze vision and return the cache for its features, if the options ask for it."""
    if not options.vision.freeze_vision:
        return None
    freeze_vision(policy)
    if known is None:
        known = FeatureCache(policy, data.spec.cameras, copies=processes.on_machine)
    return known.for_sight(policy.sight)


def _trainer(
    options: TrainOptions, policy: Policy, data: Data, cache: FeatureCache | None, fabric: Fabric
) -> Trainer:
    """Return the trainer with its data in memory, at the first step."""
    processes = Processes.of(fabric)
    with processes.agreeing():
        windows = training_windows(options, data, processes, frozen=cache is not None)
    with processes.agreeing():
        network, form = policy.config, policy.relative
        source = batch_source(
            options, data, windows, cache, network, form, processes, fabric.device
        )
        errors = _errors(options, data, cache, processes)
        config = trainer_config(options, data, source, errors)
        recall = _recall_loss(options, policy, source)
    return Trainer(policy, source, errors, config, options.out, fabric, recall)


def _errors(
    options: TrainOptions, data: Data, cache: FeatureCache | None, processes: Processes
) -> dict[str, EpisodeErrors]:
    """Return what evaluates a policy on the held-out episodes, and on those to train on."""
    statistics = dataset_statistics(data.training).actions
    require_motion(statistics, data.training.source)
    parts = {"validation": data.validation, "training": data.training}
    data_sets = {} if data.sets is None else {"validation": data.sets.validation_names}
    errors = {
        name: EpisodeErrors.of(
            part,
            statistics,
            data.resize_to,
            cache=cache,
            data_sets=data_sets.get(name, ()),
            processes=processes,
        )
        for name, part in parts.items()
        if len(part)
    }
    if options.keeping.early_stopping is not None and "validation" not in errors:
        raise UserError(
            "--early-stopping compares errors on held-out episodes, and there are none; hold some out with "
            "--validation-filter, or leave it out"
        )
    return errors


def _resume(options: TrainOptions, trainer: Trainer, console: Console) -> None:
    """Bring the trainer to the step where the training stopped, if its data are still the same."""
    path = resume_path(options.out)
    found = require_same_data(options, read_header(path), trainer.config.facts["data"])
    _tell_differences(console, found)
    trainer.resume(path)


def _tell_differences(console: Console, found: Sequence[Difference]) -> None:
    for each in found:
        console.print(f"note: resumed in spite of {each}", highlight=False, soft_wrap=True)


def _recall_loss(options: TrainOptions, policy: Policy, source: BatchSource) -> RecallLoss | None:
    if source.recall is None:
        return None
    torch.manual_seed(options.seed)
    return RecallLoss(policy.config.width, source.recall.size, options.loss.recall_weight)


def _summary(options: TrainOptions, policy: Policy, data: Data, trainer: Trainer) -> str:
    """Return one line that tells what is trained, on what, and where."""
    millions = sum(parameter.numel() for parameter in policy.parameters()) / 1e6
    cameras = ", ".join(
        f"{camera.name} {camera.width}x{camera.height}" for camera in data.spec.cameras
    )
    vision = policy.vision.weights_used if policy.vision is not None else "none"
    others = trainer.processes.count - 1
    more = f" and {others} more" if others else ""
    start = f", from {options.init}" if options.init else ""
    start = f", from step {trainer.progress.step}" if options.resume else start
    return (
        f"{len(data.training)} episodes ({data.training.num_ticks} ticks) to train on, "
        f"{len(data.validation)} held out; cameras {cameras or 'none'}; {millions:.2f} million weights "
        f"(core: {core_name(policy.config.core)}, vision: {vision}) on "
        f"{trainer.device}{more}{start}"
    )
