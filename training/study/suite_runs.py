"""The folder of one core and seed: what it holds, and what of it is done.

Everything in it is written atomically, so that a kill at any moment leaves it whole. A lock keeps
other processes away while one works in it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from filelock import FileLock, Timeout
from tyro.conf import OmitArgPrefixes, arg

from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import NAMES, TTM
from ttm.policy.errors import (
    UserError,
    options,
    require_above_0,
    require_at_least,
    require_choice,
    require_some,
)
from ttm.policy.files import write_json
from ttm.policy.sight import SightMemory
from ttm.sim.condition import LIVE, PROBE_DESCRIPTIONS, Condition, ProbeName
from ttm.sim.environment import KITCHEN, CueName
from ttm.sim.results import Evaluation, load_evaluation
from ttm.training.console import make_folder
from ttm.training.options import (
    FrozenVisionConfig,
    InputDropoutConfig,
    LossConfig,
    OptimizationConfig,
    TrainOptions,
    Window,
)
from ttm.training.run_log import LAST, resume_path
from ttm.training.sequence_model import (
    NO_SIGHT,
    TOKENS,
    SightSize,
    has_free_size,
    num_parameters,
    split_sight,
    study_core,
    with_parameters,
)

FACTS, START, TRAINING, EVALUATIONS = "run.json", "start.safetensors", "training", "evaluation"
"""The names of what the folder holds."""

LATER_SETTINGS = {"window": "episode"}
"""Settings that did not exist at first, and what they were then."""


@dataclass(frozen=True)
class RunFacts:
    """What a training is of. The fields are the format of `FACTS`."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    """The configuration of the core, as `core_to_dict` returns it."""
    sight_tokens: int
    """J of the sight memory; 0 for none."""
    parameters: int
    """Number of parameters of the core and the sight memory."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    settings: Mapping[str, Any]
    """What all trainings that are compared have in common."""
    sight_cells: int | None = None
    """Cells along each side of a frame for the sight memory; None for those of the checkpoint of --init."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one core and seed."""

    path: Path

    @property
    def start(self) -> Path:
        """The checkpoint that the training begins with."""
        return self.path / START

    @property
    def training(self) -> Path:
        """The folder of the training, as `ttm train --out` leaves it."""
        return self.path / TRAINING

    @property
    def checkpoint(self) -> Path:
        """The checkpoint after the last step, which is evaluated."""
        return self.training / LAST

    @property
    def can_resume(self) -> bool:
        """Whether a training has begun, and saved its state."""
        return resume_path(self.training).exists()

    @property
    def facts(self) -> RunFacts | None:
        """What the folder is of; None if nothing has begun. Raises `UserError` if it is damaged."""
        path = self.path / FACTS
        if not path.exists():
            return None
        needed = [field.name for field in fields(RunFacts) if field.default is MISSING]
        values = _read(path, needed)
        values["settings"] = LATER_SETTINGS | values["settings"]
        return RunFacts(
            **{each.name: values[each.name] for each in fields(RunFacts) if each.name in values}
        )

    @property
    def training_result(self) -> Mapping[str, Any] | None:
        """What the finished training tells of itself; None if it is not finished."""
        path = self.training / "result.json"
        result = _read(path, ["finished"]) if path.exists() else {"finished": False}
        return result if result["finished"] else None

    def write_facts(self, facts: RunFacts) -> None:
        """Say what the folder is of."""
        write_json(self.path / FACTS, asdict(facts))

    def evaluation(self, task: str, condition: Condition) -> Path:
        """Return the folder of the evaluation of one task under one condition."""
        return self.path / EVALUATIONS / task / condition.folder

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations that there are. Raises `UserError` if one is damaged."""
        found = (self.path / EVALUATIONS).glob("*/*/result.json")
        return [load_evaluation(path) for path in sorted(found)]

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Keep other processes from working here. Yields False if one does so already."""
        lock = FileLock(make_folder(self.path) / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def run_folders(out: Path) -> list[RunFolder]:
    """Return the folders of all trainings in `out` that have begun, in the order of their names."""
    return [RunFolder(path.parent) for path in sorted(out.glob(f"*/seed_*/{FACTS}"))]


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a JSON object, which must have those called `names`."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not values.keys() >= set(names):
            raise ValueError(f"there must be values called {', '.join(names)}")
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete its folder, which is then made again"
        ) from error
    return values


# The variants that the study compares: named cores, with options or without.
#
# This module imports no torch, because the command line takes its defaults from here.

OURS = "ours"
"""The name of our Token Turing Machine. `TTM` is the published one."""
OURS_OPTIONS = (
    "write=ring",
    "read=attend",
    "process_memory=true",
    "write_outputs=false",
    "num_layers=1",
    "gate_max_ticks=1000",
    f"{TOKENS}=6",
)
"""What ours differs in from the published machine."""
VARIANTS = (OURS, TTM, "none", "lstm", "tlb", "hourglass", "transformer", "frame-stacking")
"""What is compared by default."""


@dataclass(frozen=True)
class Variant:
    """A core with options, and perhaps a sight memory, as it is named in the tables."""

    label: str
    core: str
    options: tuple[str, ...]
    sight: SightSize = NO_SIGHT

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^A-Za-z0-9@=._-]+", "_", self.label)


def parse_variant(text: str, ours_options: Sequence[str]) -> Variant:
    """Return the variant of "CORE FIELD=VALUE ...", in which the core may be `OURS`.

    ours_options: what `OURS` stands for. Later options count. Raises `UserError` if there is no such
    core. The fields of the core are checked where it is built.
    """
    try:
        name, *options = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"--core '{text}' is no core; give a name, with FIELD=VALUE in the same quotes if need "
            "be, such as 'lstm num_layers=2'"
        ) from error
    require_choice("--core", name, (OURS, *NAMES))
    label = " ".join([name, *options])
    wanted = (*ours_options, *options) if name == OURS else tuple(options)
    return Variant(label, TTM if name == OURS else name, *split_sight(wanted))


# The sizes of the cores in the study: all have as many parameters as ours, within 2 %.

COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "process_size": 8,
        "memory_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "window": 32,
        "bottleneck": 64,
    }
)
"""Sizes of every core that has such fields: those of the tiny preset. A window of 32 ticks reaches
back over a gap of 15, but not over one of 45."""
OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "lstm": {"num_layers": 3},
        "mixer": {"window": 6},
        "frame-stacking": {"window": 6},
        "tlb": {"num_layers": 1, "chunk_size": 8},
        "hourglass": {
            "hierarchy": "1@1 1@2 1@1",
            "pooling": "average",
            "upsampling": "linear",
            "position": "rotary",
        },
    }
)
"""Sizes of single cores. A core that is not named here gets `COMMON` alone."""
REFERENCE = "lstm"
"""The core that determines the number of parameters; it has no MLP whose width could be chosen."""
TOLERANCE = 0.02
"""How far the number of parameters may be from ours, as a portion of it."""


SOURCES = ("ttm", "lstm")
"""The cores whose first weights all others share as far as names and shapes are equal."""


def suite_cores(
    ours: Variant, variants: Sequence[Variant], width: int, num_inputs: int
) -> dict[str, CoreConfig]:
    """Return label -> configuration of each of `variants`; see `sized_cores`.

    Raises `UserError` for options that do not fit, and for a variant whose number of parameters
    differs from that of `ours` by more than `TOLERANCE`.
    """
    each = (ours, *variants)
    cores = sized_cores(ours, each, width, num_inputs)
    sizes = {
        variant.label: variant_parameters(variant, cores[variant.label], width, num_inputs)
        for variant in each
    }
    wanted = sizes[ours.label]
    for label, found in sizes.items():
        if abs(found - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"--core '{label}' has {found:,} parameters and ours {wanted:,}, more than 2 % apart; "
                "leave mlp_size out of its options and of --ours-options, or give sizes that fit"
            )
    return {each.label: cores[each.label] for each in variants}


def source_cores(ours: Variant, width: int, num_inputs: int) -> list[CoreConfig]:
    """Return the cores of `SOURCES`, sized as those that are compared with `ours`."""
    sources = [Variant(name, name, ()) for name in SOURCES]
    return list(sized_cores(ours, sources, width, num_inputs).values())


def sized_cores(
    ours: Variant, variants: Sequence[Variant], width: int, num_inputs: int
) -> dict[str, CoreConfig]:
    """Return label -> configuration of each of `variants`.

    The width of the MLPs is chosen: that of `ours` so that it has as many parameters as the LSTM
    at the study's sizes, and those of all others so that they have as many as `ours`. A core whose
    options name a width, or that has no MLPs, has a size of its own.

    width: D. num_inputs: N, the tokens of a tick. Raises `UserError` for options that do not fit.
    """
    reference = num_parameters(study_core(REFERENCE, COMMON, OWN), width, num_inputs)
    own = _sized(ours, reference, width, num_inputs)
    wanted = variant_parameters(ours, own, width, num_inputs)
    return {each.label: _sized(each, wanted, width, num_inputs) for each in variants}


def variant_parameters(variant: Variant, config: CoreConfig, width: int, num_inputs: int) -> int:
    """Return the number of parameters of the core and of the sight memory.

    config: of the core. num_inputs: N without the tokens of the sight memory.
    """
    own, more = _sight(variant, width)
    return num_parameters(config, width, num_inputs + more) + own


def _sight(variant: Variant, width: int) -> tuple[int, int]:
    """Return the parameters of the sight memory, and the tokens that it adds."""
    if not variant.sight.tokens:
        return 0, 0
    sight = SightMemory(width, variant.sight.tokens)
    return sum(parameter.numel() for parameter in sight.parameters()), sight.num_tokens


def _sized(variant: Variant, wanted: int, width: int, num_inputs: int) -> CoreConfig:
    config = study_core(variant.core, COMMON, OWN, variant.options)
    if not has_free_size(config, variant.options):
        return config
    own, more = _sight(variant, width)
    return with_parameters(
        variant.label,
        config,
        wanted - own,
        width,
        num_inputs + more,
        advice="give it smaller sizes",
    )


# The options of `ttm study suite`.

VARIANT = arg(
    metavar="CORE",
    help="What to compare: ours (ttm with --ours-options) or a name of ttm train --core, each with "
    "FIELD=VALUE in the same quotes if need be, such as 'lstm num_layers=2'.",
)
PROBE = arg(
    help="What is done to the memory in evaluations; live is always among them: "
    + "; ".join(f"{name}: {text}" for name, text in PROBE_DESCRIPTIONS.items())
    + "."
)


VALIDATIONS = 4
"""Evaluations on held-out demonstrations within a training. The policy after the last step counts."""


@dataclass(frozen=True)
class SuiteOptions:
    """What `ttm study suite` asks."""

    data: tuple[str, ...] = ()
    """Demonstrations of the tasks: HDF5 files, folders of them, or globs in quotes."""
    init: Path = Path("shipped")
    """The checkpoint whose vision, tokens and normalisation all policies begin with. Vision stays
    frozen. Core and action head are new."""
    core: Annotated[tuple[str, ...], VARIANT] = VARIANTS
    ours_options: tuple[str, ...] = OURS_OPTIONS
    """What ours differs in from the published ttm, each FIELD=VALUE. With an mlp_size among them,
    ours keeps its size and the others get as many parameters."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training for each seed, which seeds first weights and batches."""
    steps: int = 2000
    """Training steps of every core."""
    window: Window = "episode"
    """Ticks in a training window, as in ttm train. With 1 a policy learns to act without any memory, as a
    control for --cue left_on; give --recall-weight 0, a larger --batch-size and --probe zero as well."""
    batch_size: int = 16
    """Windows in a batch."""
    augmented_versions: int = 1
    """Versions of the frames, as in ttm train. 1: as recorded."""
    new_statistics: bool = False
    """Normalise by the statistics of the demonstrations instead of the checkpoint's."""
    loss: OmitArgPrefixes[LossConfig] = field(default_factory=lambda: LossConfig(recall_weight=2.0))
    optimization: OmitArgPrefixes[OptimizationConfig] = field(default_factory=OptimizationConfig)
    input_dropout: OmitArgPrefixes[InputDropoutConfig] = field(default_factory=InputDropoutConfig)
    task: tuple[str, ...] = ("memory",)
    """Memory tasks to evaluate, or groups of them."""
    env: str = KITCHEN
    """Gymnasium ID of the environment, as in ttm evaluate."""
    gap: tuple[int, ...] = (15, 45)
    """Ticks for which the tasks hide their cue in evaluations."""
    probe: Annotated[tuple[ProbeName, ...], PROBE] = (LIVE, "swap", "erase")
    cue: CueName = "hidden"
    """Hide the cue in evaluations, or leave it on as a control; then give demonstrations and an --out of
    that kind as well."""
    episodes: int = 100
    """Initial states for each task, gap and probe."""
    first_seed: int = 0
    """Number of the first initial state; demonstrations are recorded from 1,000,000 on."""
    threads: int = 1
    """CPU threads of a training."""
    workers: int = 1
    """Processes that share the episodes of an evaluation."""
    minutes_in_all: float | None = None
    """Begin nothing new after so many minutes. What has begun is finished."""
    out: Path = Path("runs/suite")
    """Folder of trainings, evaluations and report."""
    report: bool = False
    """Make nothing, and report what OUT holds."""
    figures: tuple[Path, ...] = ()
    """Make nothing, and report the figures of these files together. Earlier reports wrote them with --json,
    for example one for each task."""
    json: Path | None = None
    """Also write all figures to this file. Tables and plot can be made from it again, by --figures."""
    plot: Path | None = None
    """Also draw the choices over the gap to this file, an SVG."""

    @property
    def variants(self) -> list[Variant]:
        """What to compare, each once. Raises `UserError` if there is no such core."""
        return list(dict.fromkeys(parse_variant(text, self.ours_options) for text in self.core))

    def train_options(self, out: Path, init: Path, *, seed: int, resume: bool) -> TrainOptions:
        """Return the options of `ttm train` for one training.

        out: its folder. init: the checkpoint with its first weights.
        """
        return TrainOptions(
            data=self.data,
            out=out,
            init=init,
            steps=self.steps,
            resume=resume,
            new_statistics=self.new_statistics,
            window=self.window,
            batch_size=self.batch_size,
            vision=FrozenVisionConfig(True, self.augmented_versions),
            optimization=self.optimization,
            input_dropout=self.input_dropout,
            loss=self.loss,
            validations=VALIDATIONS,
            seed=seed,
            device="cpu",
            threads=self.threads,
        )

    @property
    def only_reports(self) -> bool:
        """Whether nothing is to be trained or evaluated."""
        return self.report or bool(self.figures)

    def check(self) -> None:
        """Raise `UserError` if a value is out of range, or if two options contradict each other."""
        require_some(options(self, "seeds", "gap", "task"))
        require_at_least(
            1,
            options(
                self, "steps", "batch_size", "augmented_versions", "episodes", "threads", "workers"
            ),
        )
        require_at_least(0, options(self, "first_seed"))
        for seed in self.seeds:
            require_at_least(0, {"--seeds": seed})
        require_above_0(options(self, "minutes_in_all"))
        if not self.variants:  # which raises for a core that there is not
            raise UserError("--core is empty; give one value or more")
        self.train_options(self.out, self.init, seed=0, resume=False).check()
        if self.plot is not None and self.plot.suffix != ".svg":
            raise UserError(f"--plot is {self.plot}; give a file that ends with .svg")
        if self.report and self.figures:
            raise UserError("--report reads OUT and --figures reads files; give one of them")
        if not self.data and not self.only_reports:
            raise UserError(
                "there are no demonstrations to learn from; name them with --data, or give --report "
                f"to see what {self.out} holds"
            )
