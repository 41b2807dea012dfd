"""`ttm train`: behaviour cloning of a policy from episodes in HDF5."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ttm.policy.errors import UserError
from ttm.training.common.core_names import CoreName
from ttm.training.option_checks import require_above_0

Preset = Literal["tiny", "base", "paper"]
Core = Literal["auto", CoreName]
Memory = Literal["zero", "carry", "burn-in"]
DEFAULT_MEMORY: Memory = "zero"
DEFAULT_BURN_IN = 8


@dataclass(frozen=True)
class TrainCommand:
    """Train a policy on demonstrations, or fine-tune one with --init.

    OUT receives best.safetensors (lowest error on held-out episodes), last.safetensors, result.json (errors, and
    those of two baselines), tensorboard/ and resume/ (for --resume). Ctrl-C saves all of that and leaves with
    exit code 130 (SIGTERM: 143); the same command with --resume goes on exactly there.
    """

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes. All must be of one robot."""
    out: Path
    """Folder for the checkpoints and everything else that the training writes."""
    preset: Preset = "tiny"
    """Size of the network: tiny (for CPUs), base (EfficientNet-B0), paper (B3, as published)."""
    core: Core = "auto"
    """What carries memory from tick to tick. ttm: Token Turing Machine; none: the same without its memory; lstm;
    transformer: causal, over the last ticks; recurrent-transformer: state tokens pass through it with the inputs;
    mixer and frame-stacking: an MLP-Mixer and a Transformer over the last ticks' tokens; tlb: Temporal Latent
    Bottleneck; hourglass: a Transformer on a shortened sequence; auto: ttm, or with --init and --resume the
    checkpoint's. With --init, another core than the checkpoint's starts from random weights, all else from its."""
    core_options: tuple[str, ...] = ()
    """Sizes and kinds of the core, each FIELD=VALUE, such as num_layers=4 window=8, or for ttm processor=mixer. Those
    not given are the preset's, or else the core's defaults; an unknown field is answered with a list of all."""
    steps: int | None = None
    """Stop after so many optimiser steps, those before --resume included."""
    minutes: float | None = None
    """Stop after so many minutes of training, those before --resume included. Without --steps: 60."""
    resume: bool = False
    """Go on with the training in OUT, exactly where it stopped."""
    overwrite: bool = False
    """Start anew even if OUT holds a training."""
    init: Path | None = None
    """Fine-tune: start from this checkpoint's weights and normalisation; `shipped` is the policy that comes with the
    project. Its robot must be the data's. With another --core or other --core-options the core alone is new."""
    new_statistics: bool = False
    """With --init: normalise by the new data's statistics instead of the checkpoint's."""
    filter: str = "train"
    """The mask of the episodes to train on. Where there are no masks, every tenth episode is held out."""
    validation_filter: str = "valid"
    """The mask of the held-out episodes."""
    cameras: tuple[str, ...] = ()
    """Use these cameras alone. Default: all (with --init: the checkpoint's)."""
    image_size: int | None = None
    """Resize all frames to so many pixels a side. Default: the checkpoint's size with --init; else larger frames are
    reduced to the preset's size (64, 224 or 300) and smaller ones stay. The robot must then send that size too."""
    window: int = 8
    """Ticks in a training window, over which gradients flow through the memory."""
    memory: Memory = DEFAULT_MEMORY
    """What the memory holds where a window begins. zero: nothing, as in the paper; carry: what the window before it in
    its episode left; burn-in: what the --burn-in ticks before it leave, which are run without gradient."""
    burn_in: int = DEFAULT_BURN_IN
    """With --memory burn-in: ticks that run before each window, or fewer where the episode begins later."""
    batch_size: int = 16
    """Windows in a batch."""
    learning_rate: float | None = None
    """Peak learning rate. Default: 1e-3 for tiny, 3e-4 for the others; a third of that with --init."""
    weight_decay: float = 0.05
    """AdamW's weight decay; normalisations and biases have none."""
    previous_action_dropout: float = 0.5
    """Portion of windows that see no previous action, so that the policy does not learn to repeat itself."""
    proprioception_dropout: float = 0.1
    """Portion of windows that see no proprioception."""
    transition_weight: float = 5.0
    """Weight in the loss of ticks at which a gripper or another binary command changes."""
    augment: bool = True
    """Shift images by a few pixels and change their colours, window by window."""
    average_decay: float = 0.999
    """Decay of the exponential moving average of the weights; the checkpoints hold the average."""
    validations: int = 20
    """How often the held-out episodes are evaluated, and the checkpoints written, over the whole training."""
    seed: int = 0
    """Seed of weights, windows, augmentation and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU where there is one."""
    precision: Literal["32", "bf16"] = "32"
    """bf16: mixed precision, for GPUs and for CPUs with bfloat16 instructions."""
    threads: int = 0
    """CPU threads; 0 means one for each core."""

    def run(self) -> int:
        """Trains; returns the exit code."""
        self._validate()
        # Waiting threads that spin would take the core from those that prepare the next batch.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from ttm.training.cloning.assembly import train

        return train(self)

    def _validate(self) -> None:
        require_above_0(self, "window", "burn_in", "image_size", "batch_size", "validations")
        require_above_0(self, "steps", "minutes", "learning_rate")
        for name in ("previous_action_dropout", "proprioception_dropout", "average_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; give a portion from 0 to 1"
                )
        if self.resume and self.overwrite:
            raise UserError(
                "--resume goes on with a training and --overwrite throws it away; give one of them"
            )
