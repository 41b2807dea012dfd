"""All options of `ttm train`, grouped by the part of the training that they configure.

This module imports no torch, so that the command line can be built without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from tyro.conf import OmitArgPrefixes, arg

from ttm.datasets.observations.choices import Choices
from ttm.policy.checks import require_above_0, require_at_least, require_at_most, require_portion
from ttm.policy.errors import UserError
from ttm.policy.network.config import (
    LONGEST_DELAY_S,
    ActionHeadConfig,
    PresetName,
    VisionModel,
)
from ttm.policy.network.relative.reference import parsed_once
from ttm.training.cloning.settings.groups import (
    NO_WEIGHTS,
    AugmentationConfig,
    FrozenVisionConfig,
    InputDropoutConfig,
    KeepingConfig,
    LossConfig,
    MemoryStartConfig,
    OptimizationConfig,
    OptimizerConfig,
    ProcessesConfig,
    Shuffle,
    Window,
)
from ttm.training.common.core_names import AUTO, CORE_HELP, CoreChoice
from ttm.training.common.schedule import Budget

LEARNING_RATES: Mapping[PresetName, float] = MappingProxyType(
    {"tiny": 1e-3, "base": 3e-4, "paper": 3e-4}
)
"""Preset -> default peak learning rate of a training from random weights."""
FINE_TUNING = 1 / 3
"""Factor on the default learning rate when a training starts from a checkpoint."""
PREFIXED = (AugmentationConfig, OptimizerConfig)
"""Groups whose options have the name of the group before their own, such as --augmentation.shift."""


def _fields_in_words(config: object) -> str:
    """Return the fields of a dataclass with their values and choices, as text."""
    hints = get_type_hints(type(config))
    words = []
    for each in fields(config):  # type: ignore[arg-type]
        choices = "|".join(map(str, get_args(hints[each.name])))
        value = getattr(config, each.name)
        words.append(f"{each.name} ({f'{choices}, default ' if choices else ''}{value})")
    return ", ".join(words)


HEAD_HELP = (
    "Changes to the action head, each FIELD=VALUE, such as kind=bins num_bins=128. Fields and defaults: "
    f"{_fields_in_words(ActionHeadConfig())}; base and paper have hidden_size 512. With --init and "
    "--resume the checkpoint's head stays, so the changes must agree with it."
)
"""Help text of `ttm train --head-options`."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of one training."""

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes. All must be of one robot. With weights,
    PATH:WEIGHT each, every data set has that share of the windows; without them, all windows come
    equally often."""
    out: Path
    """Folder for the checkpoints and everything else that the training writes."""
    preset: PresetName = "tiny"
    """Size of the network: tiny (for CPUs), base (EfficientNet-B0), paper (B3, the sizes of the
    paper)."""
    vision_model: VisionModel | None = None
    """Vision network in place of the preset's, at its full width and cut at the preset's stride. ResNets
    are those of BC-Z, with FiLM after every block."""
    vision_weights: Annotated[str, arg(metavar="{none,imagenet,FILE}")] = NO_WEIGHTS
    """Initial weights of vision: none (random), imagenet (those of efficientnet-pytorch, or of
    torchvision for ResNets, which are downloaded once; of efficientnet-lite0 they are a package, the
    extra [lite0]), or a file with a state dict of that network (.pth, .safetensors). With either of the
    last two, tiny has the first stages of EfficientNet-B0 at their full width."""
    core: Annotated[CoreChoice, arg(help=CORE_HELP)] = AUTO
    core_options: tuple[str, ...] = ()
    """Sizes and kinds of the core, each FIELD=VALUE, such as num_layers=4 window=8, or
    processor=mixer for ttm. A field that is not given has the preset's value, or else the core's
    default. An unknown field is answered with a list of all fields."""
    head_options: Annotated[tuple[str, ...], arg(help=HEAD_HELP)] = ()
    sight_tokens: int | None = None
    """Selectors of the sight memory, which keeps what the first camera has shown and finds it again:
    6 is a good value, 0 is none. Default: the checkpoint's with --init, otherwise 0."""
    sight_cells: int | None = None
    """Cells along each side of a frame as the sight memory sees it. Fewer are faster, more tell smaller
    things apart. Default: the checkpoint's with --init, otherwise 16."""
    chunk: int | None = None
    """Actions that the policy predicts at each tick: its own and those of the ticks after it. Which
    are carried out is chosen when it runs, such as by `ttm evaluate --execution`. Default: the
    checkpoint's with --init, otherwise 1."""
    relative: tuple[str, ...] = ()
    """Parts of the action that the network predicts relative to what is measured, each PART=VECTOR, or
    with some of the vector's values PART=VECTOR[FIRST:STOP], such as arm=joints[0:6]. Rotations also say
    how they are written, such as tip:rotvec=tip_quat:xyzw (xyzw, wxyz, rotvec, rpy, 6d-columns, 6d-rows;
    pose-xyzw and so on with a position before). The robot still gets absolute commands. With --init the
    checkpoint's stay."""
    absolute: tuple[str, ...] = ()
    """The other way round: displacements that the network predicts as positions, written as for
    --relative, such as arm=tip_position. The robot still gets displacements."""
    delay: float | None = None
    """Longest time from an observation until its command is in force, in seconds. The policy learns to
    act for any time up to it, which is drawn for each window, and is told it when it runs. Default: the
    checkpoint's with --init, otherwise 0."""
    budget: OmitArgPrefixes[Budget] = field(default_factory=Budget)
    resume: bool = False
    """Continue the training in OUT exactly where it stopped."""
    overwrite: bool = False
    """Start again even if OUT holds a training."""
    resume_anyway: bool = False
    """With --resume: go on although the episodes, the length of the training, --learning-rate,
    --optimizer.gradient-limit or --precision are others than before, which the training then says. A
    training of another length has another learning rate."""
    dry_run: bool = False
    """Write nothing: say what would be trained and on what, and measure a few steps, from which the
    time of the whole training and its memory follow."""
    keeping: OmitArgPrefixes[KeepingConfig] = field(default_factory=KeepingConfig)
    init: Path | None = None
    """Fine-tune: start from this checkpoint's weights and normalisation; `shipped` is the policy
    that comes with the project. It must be for the robot of the data. With another --core or
    --core-options, or other --sight-tokens, only these are new; with another --chunk, the action
    head is; with a first --delay, what tells the policy of it."""
    new_statistics: bool = False
    """With --init: normalise by the statistics of the new data instead of the checkpoint's."""
    filter: str = "train"
    """Mask of the episodes to train on. Without mask/train, these are all that no mask/valid or
    mask/test names; without mask/valid, every tenth of them is held out."""
    validation_filter: str = "valid"
    """Mask of the held-out episodes."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)
    image_size: int | None = None
    """Resize all frames to squares of this side, in pixels. Default: the checkpoint's size with
    --init; otherwise larger frames are reduced to the preset's size (64, 224 or 300) and smaller
    ones stay as they are. The robot must then send frames of that size too."""
    window: Window = 8
    """Ticks in a training window, over which gradients flow through the memory; or `episode` for
    whole episodes from their first tick, in batches of similar length."""
    memory_start: OmitArgPrefixes[MemoryStartConfig] = field(default_factory=MemoryStartConfig)
    batch_size: int = 16
    """Windows in a batch, on all devices together."""
    shuffle: Shuffle = "auto"
    """Which windows can come next. all: any. N: those of N x --batch-size sections that are open. A section
    is about 16 windows one after another of an episode, of which every N-th batch takes one until all
    are taken, so that a frame is read and decoded once or twice in a pass, and not for each window that
    it is in. auto: 24 where the frames do not fit into memory, and otherwise all."""
    vision: OmitArgPrefixes[FrozenVisionConfig] = field(default_factory=FrozenVisionConfig)
    optimization: OmitArgPrefixes[OptimizationConfig] = field(default_factory=OptimizationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    input_dropout: OmitArgPrefixes[InputDropoutConfig] = field(default_factory=InputDropoutConfig)
    loss: OmitArgPrefixes[LossConfig] = field(default_factory=LossConfig)
    augment: bool = True
    """Shift images by a few pixels and change their colours, differently for each window."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    validations: int = 20
    """Number of evaluations on the held-out episodes, each followed by writing the checkpoints,
    over the whole training."""
    seed: int = 0
    """Seed of the weights, windows, augmentation and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU where there is one."""
    processes: OmitArgPrefixes[ProcessesConfig] = field(default_factory=ProcessesConfig)
    precision: Literal["32", "bf16"] = "32"
    """bf16: mixed precision, for GPUs and for CPUs with bfloat16 instructions."""
    compile: bool = False
    """Compute losses and gradients by torch.compile, the ticks of a window as one graph. Its first step
    takes a minute or more; results differ by rounding. A CPU needs g++."""
    threads: int = 0
    """CPU threads of each device; 0 shares the cores that may be used among the devices."""
    workers: int | None = None
    """Processes that read, decode and augment frames for each device; 0 takes a thread instead. What
    is trained does not depend on it. Default: 0 while all frames fit into half of the free memory, and
    otherwise half as many as there are cores for it, at most 8."""

    def by_name(self) -> dict[str, Any]:
        """Return the values by the names of the command line, such as `batch-size`."""
        values: dict[str, Any] = {}
        for each in fields(TrainOptions):
            value = getattr(self, each.name)
            if not is_dataclass(value):
                values[_dashed(each.name)] = value
                continue
            prefix = f"{each.name}." if isinstance(value, PREFIXED) else ""
            values |= {
                f"{prefix}{_dashed(part.name)}": getattr(value, part.name) for part in fields(value)
            }
        return values

    def plain(self) -> dict[str, Any]:
        """Return the values of `by_name` as plain data, for JSON and YAML."""
        return {name: _plain(value) for name, value in self.by_name().items()}

    def check(self) -> None:
        """Raise `UserError` if a value is out of its range or two options contradict each other."""
        values = {f"--{name}": value for name, value in self.by_name().items()}

        def given(*names: str) -> dict[str, Any]:
            return {name: values[name] for name in names}

        require_above_0(given("--burn-in", "--image-size", "--batch-size", "--augmented-versions"))
        require_above_0(given("--weigh-changes", "--weigh-starts"))
        if self.window != "episode":
            require_above_0(given("--window"))
        require_above_0(given("--validations", "--steps", "--minutes", "--learning-rate"))
        require_above_0(given("--early-stopping", "--save-every", "--keep", "--chunk"))
        require_above_0(given("--devices", "--nodes", "--accumulate"))
        if not isinstance(self.shuffle, str):
            require_above_0(given("--shuffle"))
        require_above_0(given("--sight-cells"))
        above_0 = ("epsilon", "gradient-limit", "warmup-steps", "longest-warmup")
        require_above_0(given(*(f"--optimizer.{name}" for name in above_0)))
        require_portion(given("--optimizer.floor", "--optimizer.longest-warmup"))
        require_portion(given("--previous-action-dropout", "--proprioception-dropout"))
        require_portion(given("--average-decay", "--augmentation.shift"))
        limits = ("brightness", "contrast", "saturation", "hue-rad")
        require_at_least(0, given(*(f"--augmentation.{name}" for name in limits)))
        require_at_least(0, given("--weigh-policy", "--recall-weight", "--workers", "--threads"))
        limited = ("--weight-decay", "--transition-weight", "--sight-tokens", "--seed")
        require_at_least(0, given(*limited, "--delay"))
        require_at_most(LONGEST_DELAY_S, given("--delay"))
        parsed_once(self.relative, self.absolute)
        self._check_optimizer()
        self._check_together()

    def _check_optimizer(self) -> None:
        """Raise `UserError` if AdamW does not take these values."""
        for beta in self.optimizer.betas:
            if not 0 <= beta < 1:
                raise UserError(
                    f"--optimizer.betas has {beta}; give two portions from 0 to below 1"
                )

    def _check_together(self) -> None:
        """Raise `UserError` if two options contradict each other."""
        memory, versions = self.memory_start.memory, self.vision.augmented_versions
        if self.window == "episode" and memory != "zero":
            raise UserError(
                f"--window episode starts at the first tick, before which there is no memory, but "
                f"--memory is {memory}; leave --memory out, or give --window a number"
            )
        if not isinstance(self.shuffle, str) and (self.window == "episode" or memory == "carry"):
            raise UserError(
                f"--shuffle is {self.shuffle}, but sections are of windows that overlap, and with --window "
                "episode or --memory carry none do; leave --shuffle out"
            )
        if self.window == "episode" and self.compile:
            raise UserError(
                "--compile makes one graph of the ticks of a window, and --window episode has windows of "
                "many lengths, each of which would be compiled anew; give --window a number, or leave it out"
            )
        if self.vision_model is not None and self.init is not None:
            raise UserError(
                f"--vision-model is {self.vision_model}, but with --init vision is that of {self.init}; "
                "give one of them"
            )
        if self.vision_weights != NO_WEIGHTS and self.init is not None:
            raise UserError(
                f"--vision-weights is {self.vision_weights}, but with --init vision has the weights of "
                f"{self.init}; give one of them"
            )
        if self.vision.freeze_vision and self.init is None and self.vision_weights == NO_WEIGHTS:
            raise UserError(
                "--freeze-vision keeps the vision of a checkpoint; name one with --init, such as shipped, "
                "or give --vision-weights"
            )
        if versions > 1 and not (self.vision.freeze_vision and self.augment):
            raise UserError(
                f"--augmented-versions is {versions}, which needs --freeze-vision and --augment; "
                "leave it out to augment every window anew"
            )
        if self.loss.recall_weight and not self.vision.freeze_vision:
            raise UserError(
                f"--recall-weight is {self.loss.recall_weight}, but the recall loss compares features of "
                "a vision that stays the same; give --freeze-vision too, or leave it out"
            )
        if self.vision.freeze_vision and self.workers:
            raise UserError(
                f"--workers is {self.workers}, but with --freeze-vision the features are in memory, and "
                "no frames are read; leave it out"
            )
        if self.keeping.keep is not None and self.keeping.save_every is None:
            raise UserError(
                f"--keep is {self.keeping.keep}, but it counts the checkpoints of --save-every; give it "
                "too, or leave it out (best and last are always kept)"
            )
        if "wandb" in self.keeping.logger and find_spec("wandb") is None:
            raise UserError("--logger wandb needs Weights & Biases: pip install '.[wandb]'")
        if self.resume_anyway and not self.resume:
            raise UserError(
                "--resume-anyway says how to resume; give --resume too, or leave it out"
            )
        if self.resume and self.overwrite:
            raise UserError(
                "--resume continues a training and --overwrite discards it; give one of them"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _dashed(name: str) -> str:
    return name.replace("_", "-")


OPTION_NAMES = tuple(TrainOptions(data=(), out=Path()).by_name())
"""The names of all options on the command line, without their dashes."""
