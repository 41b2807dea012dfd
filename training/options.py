"""All options of `ttm train`, said once: what the command, its YAML file and every part of the training take.

Options that few trainings change have the marker `Suppress`. They stand in the file of --config alone,
under the same names, such as `optimizer: {betas: [0.9, 0.95]}`. This module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from tyro.conf import OmitArgPrefixes, Suppress, arg

from ttm.datasets.description import Choices
from ttm.policy.config import LONGEST_DELAY_S, PresetName, VisionModel
from ttm.policy.errors import (
    UserError,
    require_above_0,
    require_at_least,
    require_at_most,
    require_portion,
)
from ttm.policy.files import write_atomically
from ttm.policy.references import parsed_once
from ttm.training.config_file import read_config
from ttm.training.help_texts import AUTO, CORE_HELP, CoreChoice

Memory = Literal["zero", "carry", "burn-in"]
Window = int | Literal["episode"]
Shuffle = int | Literal["auto", "all"]
LoggerName = Literal["tensorboard", "csv", "wandb"]
NO_WEIGHTS = "none"
"""The value of --vision-weights for random ones."""


@dataclass(frozen=True)
class Budget:
    """Length of the training. It ends when the steps are done or the minutes have passed."""

    steps: int | None = None
    minutes: float | None = None

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the portion of the budget that is used, in [0, 1]."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = elapsed_s / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def left(self, step: int, elapsed_s: float, step_s: float) -> int:
        """Return how many more steps fit, if each takes `step_s`."""
        limits = [] if self.steps is None else [self.steps - step]
        if self.minutes is not None:
            limits.append(int((60 * self.minutes - elapsed_s) / step_s))
        return max(0, min(limits))


@dataclass(frozen=True)
class MemoryStartConfig:
    """What the memory holds at the first tick of a training window."""

    memory: Memory = "zero"
    """zero: the initial memory, as in the paper. carry: the memory that the preceding window of the
    same episode left. burn-in: the memory after the ticks before the window, which run without
    gradient."""
    burn_in: Suppress[int] = 8
    """With --memory burn-in: ticks that run before each window, fewer near the start of an episode."""


@dataclass(frozen=True)
class InputDropoutConfig:
    """Inputs that are hidden from the network, for whole windows drawn at random."""

    previous_action_dropout: float = 0.5
    """Portion of windows without previous actions, so that the policy does not learn to repeat
    itself."""
    proprioception_dropout: Suppress[float] = 0.1
    """Portion of windows without proprioception."""


@dataclass(frozen=True)
class FrozenVisionConfig:
    """Training on features of vision that are computed once."""

    freeze_vision: bool = False
    """With --init or --vision-weights: keep the vision that one of them gives, from the frame to the
    feature map with FiLM. Features are computed once for each distinct frame and kept in memory, so
    that a step takes a fraction of the time."""


@dataclass(frozen=True)
class LossConfig:
    """Weights of ticks, which multiply each other and those of the episodes, and the recall loss."""

    transition_weight: Suppress[float] = 5.0
    """Weight of the ticks at and next to a change of a binary command, such as the gripper's."""
    weigh_changes: float = 1.0
    """Weight of the ticks at which the action changes: a dimension differs from the tick before by
    more than its standard deviation in the data."""
    weigh_starts: float = 1.0
    """Weight of the first three ticks after a stand-still, which is three ticks or more in which no
    proprioception moves by more than 0.02 of its standard deviations."""
    weigh_policy: float = 1.0
    """Weight of the ticks at which a policy drove before a person took over. 0: only what the person did
    is imitated, as in HG-DAgger."""
    recall_weight: float = 0.0
    """With --freeze-vision: weight of the recall loss, which teaches the memory to keep what has
    been seen and is not seen now, without labels. 0: none; 3 is a good value."""


@dataclass(frozen=True)
class AugmentationConfig:
    """Limits of the image augmentation; every change is drawn uniformly in both directions."""

    shift: float = 0.06
    """Largest shift, as a portion of the image's side."""
    brightness: float = 0.2
    """Largest relative change of all values."""
    contrast: float = 0.2
    """Largest relative change of the distance from the window's mean grey."""
    saturation: float = 0.2
    """Largest relative change of the colourfulness."""
    hue_rad: float = 0.15
    """Largest rotation of the colour circle, in radians."""


@dataclass(frozen=True)
class OptimizationConfig:
    """The optimiser (AdamW) and the average of the weights."""

    learning_rate: float | None = None
    """Peak learning rate. Default: 1e-3 for tiny, 3e-4 for base and paper; a third of that with
    --init."""
    weight_decay: Suppress[float] = 0.05
    """Weight decay of AdamW; normalisations and biases have none."""
    average_decay: Suppress[float] = 0.999
    """Decay of the exponential moving average of the weights. The checkpoints hold the average."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser, the limit of its gradient, and the course of its learning rate."""

    betas: tuple[float, float] = (0.9, 0.99)
    """Decays of the averages of the gradient and of its square."""
    epsilon: float = 1e-8
    """What is added to the root of the averaged square, against division by zero."""
    gradient_limit: float = 1.0
    """Largest norm of the gradient of all weights together; a longer gradient is scaled down to it."""
    warmup_steps: int = 100
    """Steps in which the learning rate rises to its peak, as Adam's moments need."""
    longest_warmup: float = 0.05
    """Portion of the training after which the warm-up ends at the latest."""
    floor: float = 0.02
    """Last learning rate of the cosine, as a portion of the peak."""
    kind: Literal["adamw", "muon"] = "adamw"
    """muon: Muon for the matrices of the network and AdamW for the rest."""

    def learning_rate(self, peak: float, step: int, progress: float) -> float:
        """Return the learning rate of a step (from 0) at `progress` in [0, 1] of the training."""
        warmup = min(1.0, max((step + 1) / self.warmup_steps, progress / self.longest_warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
        return peak * warmup * (self.floor + (1 - self.floor) * cosine)


@dataclass(frozen=True)
class ProcessesConfig:
    """The devices that share each batch. What is trained does not depend on them."""

    devices: int | None = None
    """Devices of each machine that share each batch: GPUs, or with --device cpu processes. Default: as
    many as torchrun or SLURM has started processes, otherwise 1."""
    nodes: Suppress[int | None] = None
    """Machines. Default: as many as torchrun or SLURM has started the training on, otherwise 1."""
    accumulate: Suppress[int] = 1
    """Parts into which each device cuts its windows of a batch, to need less memory. It takes them in
    turn and adds up their gradients. BatchNorm (base, paper) takes its statistics from each part."""


@dataclass(frozen=True)
class KeepingConfig:
    """When a training ends early, and what it keeps and logs."""

    early_stopping: int | None = None
    """End after this many validations in a row without a lower error. Default: train to the end."""
    save_every: Suppress[int | None] = None
    """Also write a checkpoint, OUT/checkpoints/step_….safetensors, every so many steps."""
    keep: Suppress[int | None] = None
    """With save-every: keep only so many of these checkpoints, the newest ones. Default: all."""
    logger: Suppress[tuple[LoggerName, ...]] = ("tensorboard",)
    """Where losses, speeds and errors are logged, one or more: tensorboard, csv (OUT/csv/), wandb
    (Weights & Biases, offline in OUT/wandb/ unless WANDB_MODE says otherwise)."""


LEARNING_RATES: dict[PresetName, float] = {"tiny": 1e-3, "base": 3e-4, "paper": 3e-4}
"""Preset -> default peak learning rate of a training from random weights."""
FINE_TUNING = 1 / 3
"""Factor on the default learning rate when a training starts from a checkpoint."""
FIRST_SKILL_STEPS, SEEING_STEPS = 3000, 500
"""Steps for a first skill: from random weights (an estimate), and with a policy's vision (README.md)."""
QUICKER = "--vision-weights shipped --freeze-vision"
DEFAULT_MINUTES = 60.0
"""Length of a training that is given neither steps nor minutes."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of one training. Those that matter most stand first."""

    data: tuple[str, ...]
    """Episodes of one robot: HDF5 files, folders of them, or globs in quotes. PATH:WEIGHT each gives every
    data set that share of the windows; without weights, all windows come equally often."""
    out: Path
    """Folder for the checkpoints and everything else that the training writes."""
    preset: PresetName = "tiny"
    """Size of the network: tiny (for CPUs), base (EfficientNet-B0), paper (B3, the paper's sizes)."""
    core: Annotated[CoreChoice, arg(help=CORE_HELP)] = AUTO
    steps: int | None = None
    """Stop after this many optimiser steps, including those before --resume."""
    minutes: float | None = None
    """Stop after this many minutes of training, including those before --resume. Default: 60 without
    --steps."""
    init: Path | None = None
    """Fine-tune: start from this checkpoint's weights and normalisation; `shipped` is the policy
    that comes with the project. It must be for the robot of the data. What --core, --core-options,
    --sight-tokens, --chunk and --delay change in it is new."""
    resume: bool = False
    """Continue the training in OUT exactly where it stopped."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU where there is one."""
    seed: int = 0
    """Seed of the weights, windows, augmentation and dropout."""
    config: Path | None = None
    """A YAML file of options, such as the run.yaml of another training, or with lines such as
    `batch-size: 32`. Options of the command line count more. training/README.md explains those that
    stand there alone."""
    overwrite: bool = False
    """Start again even if OUT holds a training."""
    resume_anyway: bool = False
    """With --resume: go on although the episodes, the length of the training, --learning-rate,
    --precision or optimizer.gradient-limit are others than before, and say what differs."""
    dry_run: bool = False
    """Write nothing: say what would be trained and on what, and measure a few steps, from which the
    time of the whole training and its memory follow."""
    core_options: tuple[str, ...] = ()
    """Sizes and kinds of the core, each FIELD=VALUE, such as num_layers=4 window=8, or processor=mixer
    for ttm. An unknown field is answered with a list of all fields."""
    head_options: Suppress[tuple[str, ...]] = ()
    """Changes to the action head, each FIELD=VALUE, such as [kind=bins, num_bins=128]. With --init and
    --resume the checkpoint's head stays, so the changes must agree with it."""
    vision_model: VisionModel | None = None
    """Vision network in place of the preset's, at its full width and cut at the preset's stride."""
    vision_weights: Annotated[str, arg(metavar="{none,imagenet,shipped,FILE}")] = NO_WEIGHTS
    """Initial weights of vision: none (random), imagenet (downloaded once; those of efficientnet-lite0
    are the extra [lite0]), a file with a state dict of that network (.pth, .safetensors), or those
    of a checkpoint of any robot: its file, or shipped, with the tokens of cameras that both have. Unless
    they are a checkpoint's, tiny has the first stages of EfficientNet-B0 at their full width."""
    sight_tokens: int | None = None
    """Slots of the sight memory, which keeps what the first camera shows and will show no more, and finds it
    again: 6 is a good value, 0 is none. A new one needs --freeze-vision. Default: the checkpoint's with
    --init, otherwise 0."""
    chunk: int | None = None
    """Actions that the policy predicts at each tick: its own and those of the ticks after it. `ttm
    evaluate --execution` chooses which are carried out. Default: the checkpoint's with --init, or 1."""
    relative: tuple[str, ...] = ()
    """Parts of the action that the network predicts relative to what is measured, each PART=VECTOR, or
    with some of the vector's values PART=VECTOR[FIRST:STOP], such as arm=joints[0:6]. Rotations also say
    how they are written, such as tip:rotvec=tip_quat:xyzw (xyzw, wxyz, rotvec, rpy, 6d-columns, 6d-rows;
    pose-xyzw and so on with a position before). The robot still gets absolute commands. With --init the
    checkpoint's stay."""
    absolute: Suppress[tuple[str, ...]] = ()
    """The other way round: displacements that the network predicts as positions, written as for
    --relative, such as arm=tip_position. The robot still gets displacements."""
    delay: float | None = None
    """Longest time from an observation until its command is in force, in seconds. The policy learns to
    act for any time up to it. Default: the checkpoint's with --init, otherwise 0."""
    filter: str = "train"
    """Mask of the episodes to train on. Without mask/train, these are all that no mask/valid or
    mask/test names; without mask/valid, every tenth of them is held out."""
    validation_filter: Suppress[str] = "valid"
    """Mask of the held-out episodes."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)
    image_size: int | None = None
    """The greatest height and width of frames, in pixels: larger ones are reduced, in training and wherever
    the policy runs. Default: the checkpoint's size with --init; otherwise 64, 224 or 300."""
    new_statistics: Suppress[bool] = False
    """With --init: normalise by the statistics of the new data instead of the checkpoint's."""
    window: Window = 8
    """Ticks in a training window, over which gradients flow through the memory; or `episode` for
    whole episodes from their first tick, in batches of similar length."""
    memory_start: OmitArgPrefixes[MemoryStartConfig] = field(default_factory=MemoryStartConfig)
    batch_size: int = 16
    """Windows in a batch, on all devices together."""
    shuffle: Suppress[Shuffle] = "auto"
    """Which windows can come next. all: any. N: those of N x --batch-size sections that are open, of
    about 16 windows one after another each, so that a frame is read once or twice in a pass. auto: 24
    where the frames do not fit into memory, and otherwise all."""
    vision: OmitArgPrefixes[FrozenVisionConfig] = field(default_factory=FrozenVisionConfig)
    optimization: OmitArgPrefixes[OptimizationConfig] = field(default_factory=OptimizationConfig)
    optimizer: Suppress[OptimizerConfig] = field(default_factory=OptimizerConfig)
    input_dropout: OmitArgPrefixes[InputDropoutConfig] = field(default_factory=InputDropoutConfig)
    loss: OmitArgPrefixes[LossConfig] = field(default_factory=LossConfig)
    augment: bool = True
    """Shift images by a few pixels and change their colours, differently for each window."""
    augmentation: Suppress[AugmentationConfig] = field(default_factory=AugmentationConfig)
    validations: int = 20
    """Number of evaluations on the held-out episodes, each followed by writing the checkpoints."""
    keeping: OmitArgPrefixes[KeepingConfig] = field(default_factory=KeepingConfig)
    processes: OmitArgPrefixes[ProcessesConfig] = field(default_factory=ProcessesConfig)
    precision: Literal["32", "bf16"] = "32"
    """bf16: mixed precision, for GPUs and for CPUs with bfloat16 instructions."""
    compile: bool = False
    """Compute losses and gradients by torch.compile. Its first step takes a minute or more; results
    differ by rounding. A CPU needs g++."""
    threads: int = 0
    """CPU threads of each device; 0 shares the cores among the devices."""
    workers: int | None = None
    """Processes that read, decode and augment frames for each device; 0 takes a thread instead. Default:
    0 while all frames fit into half of the free memory, otherwise half as many as its cores, at most 8."""

    @property
    def budget(self) -> Budget:
        minutes = DEFAULT_MINUTES if self.steps is self.minutes is None else self.minutes
        return Budget(self.steps, minutes)

    @property
    def peak(self) -> float:
        """The learning rate after the warm-up."""
        rate = LEARNING_RATES[self.preset] * (1.0 if self.init is None else FINE_TUNING)
        return self.optimization.learning_rate or rate

    def too_short(self, steps: int, step_s: float, sees: bool) -> str:
        """Return what to say if a first skill takes more steps than these; nothing with --init."""
        needed = FIRST_SKILL_STEPS if sees and self.vision_weights == NO_WEIGHTS else SEEING_STEPS
        if self.init is not None or steps >= needed / 2:
            return ""
        quicker = f"; quicker: {QUICKER}" if sees and not self.vision.freeze_vision else ""
        return (
            f"{steps} steps of {step_s:.2g} s are too few for a first skill, which takes about {needed} "
            f"(README.md): --steps {needed}, or --minutes {math.ceil(needed * step_s / 60)}{quicker}"
        )

    def by_name(self) -> dict[str, Any]:
        """Return the values by the names of the options, such as `batch-size`."""
        return {name: place.value(self) for name, place in PLACES.items()}

    def plain(self) -> dict[str, Any]:
        """Return the values of `by_name` as plain data, for JSON and YAML."""
        return {name: _plain(value) for name, value in self.by_name().items()}

    def check(self) -> None:
        """Raise `UserError` if a value is out of its range or two options contradict each other."""
        values = self.by_name()

        def given(names: str, group: str = "") -> dict[str, Any]:
            found = {group + name: values[group + name] for name in names.split()}
            return {label(n): value for n, value in found.items() if not isinstance(value, str)}

        require_above_0(given(
            "steps minutes validations chunk window batch-size shuffle image-size burn-in "
            "learning-rate weigh-changes weigh-starts early-stopping save-every keep "
            "devices nodes accumulate"
        ))  # fmt: skip
        require_above_0(given("epsilon gradient-limit warmup-steps longest-warmup", "optimizer."))
        require_portion(given("previous-action-dropout proprioception-dropout average-decay"))
        require_portion(given("optimizer.floor optimizer.longest-warmup augmentation.shift"))
        require_at_least(0, given("brightness contrast saturation hue-rad", "augmentation."))
        require_at_least(0, given("weigh-policy recall-weight transition-weight weight-decay"))
        require_at_least(0, given("workers threads sight-tokens seed delay"))
        require_at_most(LONGEST_DELAY_S, given("delay"))
        parsed_once(self.relative, self.absolute)
        for beta in self.optimizer.betas:
            if not 0 <= beta < 1:
                raise UserError(f"optimizer.betas has {beta}; give two portions from 0 to below 1")
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        memory, keep, recall = self.memory_start.memory, self.keeping.keep, self.loss.recall_weight
        frozen, whole = self.vision.freeze_vision, self.window == "episode"
        model, weights = self.vision_model, self.vision_weights
        if whole and memory != "zero":
            raise UserError(f"--window episode starts without memory; leave --memory {memory} out")
        if not isinstance(self.shuffle, str) and (whole or memory == "carry"):
            raise UserError(
                f"shuffle is {self.shuffle}, but sections are of windows that overlap; leave it out"
            )
        if whole and self.compile:
            raise UserError(
                "--compile has a graph for each length, and --window episode has many; leave one out"
            )
        if self.init is not None and (model is not None or weights != NO_WEIGHTS):
            given = (
                f"--vision-weights is {weights}" if model is None else f"--vision-model is {model}"
            )
            raise UserError(
                f"{given}, but with --init vision is that of {self.init}; give one of them"
            )
        if frozen and self.init is None and weights == NO_WEIGHTS:
            raise UserError(
                "--freeze-vision keeps the vision of a checkpoint; name one with --init, or for another "
                "robot with --vision-weights"
            )
        if recall and not frozen:
            raise UserError(
                f"--recall-weight is {recall}; give --freeze-vision too, or leave it out"
            )
        if frozen and self.workers:
            raise UserError(f"--workers is {self.workers}, but --freeze-vision reads no frames")
        if keep is not None and self.keeping.save_every is None:
            raise UserError(
                f"keep is {keep}, but it counts the checkpoints of save-every; give it too"
            )
        if "wandb" in self.keeping.logger and find_spec("wandb") is None:
            raise UserError("logger wandb needs Weights & Biases: pip install '.[wandb]'")
        if self.resume_anyway and not self.resume:
            raise UserError(
                "--resume-anyway says how to resume; give --resume too, or leave it out"
            )
        if self.resume and self.overwrite:
            raise UserError(
                "--resume continues a training, --overwrite discards it; give one of them"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


Options = TypeVar("Options", bound=TrainOptions)


class Place(NamedTuple):
    """Where the value of an option stands in `TrainOptions`."""

    group: str
    """The field of the group that has it; empty for a field of `TrainOptions` itself."""
    field: str
    type: Any
    in_file_alone: bool
    """Whether the command line lacks it."""

    def value(self, options: TrainOptions) -> Any:
        """Return the value of the option."""
        return getattr(getattr(options, self.group) if self.group else options, self.field)


def _places(kind: type[Any], group: str = "", marks: Sequence[Any] = ()) -> dict[str, Place]:
    """Return the options of a dataclass and of the groups among its fields, by their names."""
    found: dict[str, Place] = {}
    prefix = f"{group}." if group and OmitArgPrefixes not in marks else ""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        inner, *own = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if is_dataclass(inner):
            found |= _places(inner, each.name, own)  # type: ignore[arg-type]
        elif each.name != "config":
            name = prefix + each.name.replace("_", "-")
            found[name] = Place(group, each.name, inner, Suppress in (*marks, *own))
    return found


PLACES = _places(TrainOptions)
"""Name of each option -> where its value stands."""


def label(name: str) -> str:
    """Return what messages call an option: `--seed`, or `weight-decay`, which the command line lacks."""
    return name if PLACES[name].in_file_alone else f"--{name}"


ACTIONS = ("resume", "resume-anyway", "overwrite", "dry-run")
"""Options that say what to do with a training, and do not belong to it."""
HEADER = "# The options of a training. To train the same again: ttm train --config {} --out ANOTHER_FOLDER\n"


def write_config(path: Path, options: TrainOptions) -> None:
    """Write the options of a training."""
    nested: dict[str, Any] = {}
    for name, value in options.plain().items():
        group, _, part = name.rpartition(".")
        if name not in ACTIONS:
            (nested.setdefault(group, {}) if group else nested)[part] = value
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True, default_flow_style=None)
    write_atomically(path, HEADER.format(path) + text)


def with_file(options: Options, path: Path) -> Options:
    """Return `options` with the values of a file. Raises `UserError` if it cannot be read."""
    for name, value in read_config(path, {n: place.type for n, place in PLACES.items()}).items():
        place, change = PLACES[name], value
        if place.group:
            change = replace(getattr(options, place.group), **{place.field: value})
        options = replace(options, **{place.group or place.field: change})
    return options
