"""The options of `ttm study suite`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.policy.errors import UserError
from ttm.sim.environment import KITCHEN, CueName
from ttm.sim.evaluation.condition import LIVE, PROBE_DESCRIPTIONS, ProbeName
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.settings.groups import (
    FrozenVisionConfig,
    InputDropoutConfig,
    LossConfig,
    OptimizationConfig,
    Window,
)
from ttm.training.common.schedule import Budget
from ttm.training.study.suite.variants import OURS_OPTIONS, VARIANTS, Variant, parse_variant

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
            budget=Budget(steps=self.steps),
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
