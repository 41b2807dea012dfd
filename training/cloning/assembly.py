"""From the options of `ttm train` to a trainer: opens the data, builds or loads the policy, checks that they fit."""

from __future__ import annotations

import datetime
import os
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.console import Console

from ttm.datasets.episode import EpisodeDataset
from ttm.datasets.instructions import embed_instructions
from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.windows import WindowDataset, resized_spec
from ttm.policy.cores.registry import core_name
from ttm.policy.errors import UserError
from ttm.policy.network.policy import PRESETS, Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.spec import PolicySpec
from ttm.sim.shipped import checkpoint_path
from ttm.training.cloning.augmentation import AugmentationConfig
from ttm.training.cloning.behavior_cloning import BehaviorCloningConfig
from ttm.training.cloning.command import TrainCommand
from ttm.training.cloning.core_choice import chosen_network, require_same_core, with_chosen_core
from ttm.training.cloning.memory_start import MEMORY_STARTS
from ttm.training.cloning.resume import read_header
from ttm.training.cloning.run_log import RunLog
from ttm.training.cloning.trainer import BEST, LAST, Trainer, TrainerConfig, resume_path
from ttm.training.cloning.training_data import BatchSource, open_all, split
from ttm.training.cloning.validation import EpisodeErrors
from ttm.training.common.allocator import keep_freed_memory
from ttm.training.common.schedule import Budget, WarmupCosine

DEFAULT_MINUTES = 60.0
LEARNING_RATES = {"tiny": 1e-3, "base": 3e-4, "paper": 3e-4}
FINE_TUNING = 1 / 3
"""The learning rate of a fine-tuning, as a part of that of a training from scratch."""

NEW_CORE = "the core is new, with random weights; all else begins as {} has it"

MAY_CHANGE = {
    "data",
    "out",
    "steps",
    "minutes",
    "resume",
    "overwrite",
    "threads",
    "device",
    "validations",
}
MAY_CHANGE |= {"core", "core_options"}  # those are compared with the checkpoint's core itself
"""Options that may differ when a training is resumed; with another value of any other it would not be the same."""


def train(command: TrainCommand) -> int:
    """Runs `ttm train`; returns the exit code."""
    console = Console(stderr=True)
    keep_freed_memory()
    torch.set_num_threads(command.threads or os.cpu_count() or 1)
    _require_free(command)
    checkpoint = _checkpoint(command, console)
    data = _open_data(command, checkpoint)
    for note in dict.fromkeys(part.note for part in (data.training, data.validation) if part.note):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    policy = _policy(command, checkpoint, data)
    trainer = _trainer(command, policy, data)
    console.print(_summary(command, policy, data, trainer), highlight=False, soft_wrap=True)
    with RunLog(command.out / "tensorboard", console, trainer.progress.step, trainer.used()) as log:
        return trainer.run(log)


@dataclass(frozen=True)
class Data:
    """The episodes to train on and those held out, and what both look like to the network."""

    training: EpisodeDataset
    validation: EpisodeDataset
    resize_to: dict[str, tuple[int, int]]

    @property
    def spec(self) -> PolicySpec:
        """With the cameras at the size that the network gets."""
        return resized_spec(self.training.spec, self.resize_to)


def _require_free(command: TrainCommand) -> None:
    """A training that took hours must not be lost to a repeated command."""
    out = command.out
    if command.overwrite:
        for name in ("resume", "tensorboard"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (BEST, LAST, "result.json"):
            (out / name).unlink(missing_ok=True)
    elif not command.resume and resume_path(out).exists():
        raise UserError(
            f"{out} holds a training; go on with it by --resume, or give --overwrite or another --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {out} ({error}); give another folder with --out"
        ) from error


def _checkpoint(command: TrainCommand, console: Console) -> Policy | None:
    """What the training starts from: the one to resume, the one to fine-tune (with the core asked for), or nothing."""
    if command.resume:
        _require_same(comparable(command), read_header(resume_path(command.out))["options"])
        policy = load_checkpoint(command.out / LAST)[0]
        require_same_core(
            policy.config, command.core, command.core_options, str(command.out / LAST)
        )
        return policy
    if command.init is None:
        return None
    loaded = load_checkpoint(checkpoint_path(command.init))[0]
    torch.manual_seed(command.seed)  # a new core's weights are random
    policy = with_chosen_core(loaded, command.core, command.core_options)
    if policy is not loaded:
        console.print(f"note: {NEW_CORE.format(command.init)}", highlight=False, soft_wrap=True)
    return policy


def comparable(command: TrainCommand) -> dict[str, Any]:
    """The options that make a training what it is, as plain data."""
    options = {name: value for name, value in asdict(command).items() if name not in MAY_CHANGE}
    options["cameras"] = list(command.cameras)
    options["init"] = None if command.init is None else str(command.init)
    return options


def _require_same(options: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in options.items():
        if saved.get(name) != value:
            raise UserError(
                f"--{name.replace('_', '-')} is {value}, but the training to resume has {saved.get(name)}; "
                f"give the same options as before, or start another training with another --out"
            )


def _open_data(command: TrainCommand, checkpoint: Policy | None) -> Data:
    cameras = command.cameras or (
        tuple(c.name for c in checkpoint.spec.cameras) if checkpoint else ()
    )
    opened = open_all(command.data, cameras)
    training, validation = split(opened, command.filter), split(opened, command.validation_filter)
    if not len(training):
        raise UserError(
            f"{training.source}: no episode is in mask '{command.filter}'; record more, or give --filter"
        )
    data = Data(training, validation, _frame_sizes(command, training.spec, checkpoint))
    if checkpoint is not None:
        name = command.out / LAST if command.resume else command.init
        checkpoint.spec.require_compatible(data.spec, ours=str(name), theirs=training.source)
    return data


def _frame_sizes(
    command: TrainCommand, spec: PolicySpec, checkpoint: Policy | None
) -> dict[str, tuple[int, int]]:
    """Camera -> (height, width) for those that are resized; frames are never enlarged unasked."""
    if command.image_size is not None:
        side = command.image_size
        wanted = {camera.name: (side, side) for camera in spec.cameras}
    elif checkpoint is not None:
        wanted = {camera.name: (camera.height, camera.width) for camera in checkpoint.spec.cameras}
    else:
        side = PRESETS[command.preset].image_size
        wanted = {
            camera.name: (side, side)
            for camera in spec.cameras
            if max(camera.height, camera.width) > side
        }
    return {
        camera.name: wanted[camera.name]
        for camera in spec.cameras
        if wanted.get(camera.name, (camera.height, camera.width)) != (camera.height, camera.width)
    }


def _policy(command: TrainCommand, checkpoint: Policy | None, data: Data) -> Policy:
    """New, or the checkpoint's with its own normalisation unless --new-statistics."""
    torch.manual_seed(command.seed)
    policy = checkpoint
    if policy is None:
        policy = Policy(
            data.spec, chosen_network(command.preset, command.core, command.core_options)
        )
    if checkpoint is None or (command.new_statistics and not command.resume):
        policy.normalizer.set_statistics(dataset_statistics(data.training))
    for part in (data.training, data.validation):
        if len(part):
            texts = [episode.instruction for episode in part]
            policy.known_instructions |= dict(
                zip(texts, embed_instructions(list(part)), strict=True)
            )
    return policy


def _trainer(command: TrainCommand, policy: Policy, data: Data) -> Trainer:
    """With its data in memory, and at the step where it stopped if it is to be resumed."""
    statistics = dataset_statistics(data.training).actions
    parts = {"validation": data.validation, "training": data.training}
    errors = {
        name: EpisodeErrors.of(part, statistics, data.resize_to)
        for name, part in parts.items()
        if len(part)
    }
    windows = WindowDataset(data.training, command.window, pad="both", resize_to=data.resize_to)
    cloning = BehaviorCloningConfig(
        command.previous_action_dropout, command.proprioception_dropout, command.transition_weight
    )
    augmentation = AugmentationConfig() if command.augment else None
    memory = MEMORY_STARTS[command.memory](command.burn_in)
    source = BatchSource(windows, command.batch_size, cloning, augmentation, command.seed, memory)
    trainer = Trainer(policy, source, errors, _config(command, data), command.out, _fabric(command))
    if command.resume:
        trainer.resume(resume_path(command.out))
    return trainer


def _config(command: TrainCommand, data: Data) -> TrainerConfig:
    minutes = (
        DEFAULT_MINUTES if command.steps is None and command.minutes is None else command.minutes
    )
    return TrainerConfig(
        budget=Budget(command.steps, minutes),
        schedule=WarmupCosine(_learning_rate(command)),
        weight_decay=command.weight_decay,
        average_decay=command.average_decay,
        validations=command.validations,
        seed=command.seed,
        options=comparable(command),
        info={
            "command": shlex.join(["ttm", *sys.argv[1:]]),
            "data": data.training.source,
            "training_episodes": len(data.training),
            "training_ticks": data.training.num_ticks,
            "validation_episodes": len(data.validation),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        },
    )


def _learning_rate(command: TrainCommand) -> float:
    if command.learning_rate is not None:
        return command.learning_rate
    return LEARNING_RATES[command.preset] * (1.0 if command.init is None else FINE_TUNING)


def _fabric(command: TrainCommand) -> Fabric:
    if command.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda, but PyTorch sees no GPU here; give --device cpu, or install its CUDA build"
        )
    precision = "bf16-mixed" if command.precision == "bf16" else "32-true"
    return Fabric(accelerator=command.device, devices=1, precision=precision)


def _summary(command: TrainCommand, policy: Policy, data: Data, trainer: Trainer) -> str:
    millions = sum(parameter.numel() for parameter in policy.parameters()) / 1e6
    cameras = ", ".join(
        f"{camera.name} {camera.width}x{camera.height}" for camera in data.spec.cameras
    )
    begun = f", from {command.init}" if command.init else ""
    begun = f", from step {trainer.progress.step}" if command.resume else begun
    return (
        f"{len(data.training)} episodes ({data.training.num_ticks} ticks) to train on, "
        f"{len(data.validation)} held out; cameras {cameras}; {millions:.2f} million weights "
        f"(core: {core_name(policy.config.core)}, vision: {policy.vision.weights_used}) on {trainer.device}{begun}"
    )
