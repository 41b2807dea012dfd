"""`ttm study figure6`: the robot experiment of *Token Turing Machines* (Ryoo et al. 2022, figure 6).

One policy learns the five groups of instructions at once. The paper's successes in reality, in %: BC-Z with a
ResNet 79.80, an EfficientNet 80.08, the machine with its memory zeroed 79.26, with its memory 89.26.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tyro.conf import Suppress

from ttm.datasets.console import TitledTable
from ttm.datasets.description import NONE, Choices
from ttm.policy.config import VisionModel
from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import options, require_at_least, require_some
from ttm.policy.policy import Policy
from ttm.sim.condition import KITCHEN, Condition
from ttm.sim.environment import inspect_env
from ttm.sim.pages import Point, draw_rates
from ttm.training.data import FeatureCache, open_data
from ttm.training.network import chosen_network, policy_to_see_as
from ttm.training.options import ACTIONS, NO_WEIGHTS, TrainOptions, with_file
from ttm.training.sequence_model import split_sight
from ttm.training.study.common import require_svg
from ttm.training.study.suite import (
    FACTS,
    OURS_OPTIONS,
    RunFolder,
    StudyRunner,
    Variant,
    run_in_pieces,
)
from ttm.training.study.suite_report import (
    Figures,
    Report,
    differences_table,
    pooled,
    select,
    success_table,
)

RowName = Literal["bc-resnet", "bc-efficientnet", "ours-emptied", "ours", "ttm"]
InputsName = Literal["head", "all"]
OURS: RowName = "ours"
ALL = "all groups"
OURS_CORE = split_sight(OURS_OPTIONS)[0]
"""What ours differs in from the published machine, without the sight memory, a second one."""
ROWS: Mapping[RowName, tuple[str, tuple[str, ...]]] = {
    "bc-resnet": ("none", ("num_layers=0",)),
    "bc-efficientnet": ("none", ("num_layers=0",)),
    "ours-emptied": ("none", OURS_CORE),
    OURS: ("ttm", OURS_CORE),
    "ttm": ("ttm", ()),
}
"""Row of the table -> core and its options."""
RESNET: VisionModel = "resnet18"
NOT_SHARED = {
    "out", "seed", "core", "core-options", "vision-model", "vision-weights", "cameras", "proprioception",
    "device", "threads", "workers", *ACTIONS,
}  # fmt: skip
"""Options of `ttm train` in which rows, or machines, may differ."""
NOTES = """\
Success in % with Wilson's 95 % interval over the episodes, which does not say how much another training
would differ; for that see the differences by seed. A star: other rows have more seeds or groups there.
bc-…: BC-Z's and RT-1's vision with FiLM and an MLP, of single frames. ours-emptied: ours, whose memory is
emptied at every tick, in training too. ttm: the published machine. None has a sight memory.
Differences have the interval of Agresti and Min (2005), and p is McNemar's with Holm's correction over the
rows of a table. Pairs are the same initial state with trainings of the same seed.
head: the camera of the head and the previous action, as in the paper; all: also wrist and proprioception."""


@dataclass(frozen=True)
class Row(Variant):
    """A row of the table with one of the two settings of inputs."""

    name: RowName = OURS
    inputs: InputsName = "head"


@dataclass(frozen=True)
class StudyFigure6Command:
    """Train the policies of the Token Turing Machine paper's figure 6 on five groups of instructions.

    All get the same demonstrations, batches and steps, and every EfficientNet begins with the same weights.
    They are evaluated on the same initial states, from which no demonstration started. Each row, setting of
    inputs and seed has a folder of its own in OUT, so that the same command goes on where it was stopped, and
    several may share OUT, which also receives figures.json. Without --data it reports what OUT holds.

    Example: ttm collect --task groups --vary 1 --episodes 100 --out demos/groups, and then
    ttm study figure6 --data demos/groups --plot figure6.svg
    """

    data: tuple[str, ...] = ()
    """Demonstrations of all groups: HDF5 files, folders of them, or globs in quotes."""
    row: tuple[RowName, ...] = tuple(ROWS)
    """What to compare; ours is compared with each."""
    inputs: tuple[InputsName, ...] = ("head", "all")
    """What the policies get beside instruction and previous action: head: the head's camera alone; all: all
    cameras and proprioception."""
    seeds: tuple[int, ...] = (0,)
    """One training for each seed, which seeds first weights and batches."""
    steps: int = 3000
    """Training steps of every policy."""
    vision_weights: tuple[str, str] = (NO_WEIGHTS, NO_WEIGHTS)
    """First weights of every EfficientNet, and those of the ResNet, each as in ttm train."""
    config: Path | None = None
    """A YAML file of further options of ttm train for all of them, such as freeze-vision."""
    episodes: int = 100
    """Initial states for each group."""
    task: Suppress[tuple[str, ...]] = ("groups",)
    """Tasks to evaluate, each a group of instructions."""
    env: Suppress[str] = KITCHEN
    """Gymnasium ID of the environment, as in ttm evaluate."""
    vary: Suppress[tuple[str, ...]] = ("1",)
    """What varies in evaluations, as in ttm evaluate; in demonstrations it should be the same."""
    camera: Suppress[str] = "head"
    """The one camera of the setting `head`."""
    workers: int = 1
    """CPU cores: threads of a training, and processes that share the episodes of an evaluation."""
    out: Path = Path("runs/figure6")
    """Folder of trainings, evaluations and figures.json."""
    figures: Path | None = None
    """Make nothing, and report this file, the figures.json of a study."""
    plot: Path | None = None
    """Also draw the rates to this file, an SVG."""

    @property
    def variants(self) -> list[Row]:
        """The rows of the tables, one setting of inputs after the other."""
        return [
            Row(f"{name}, {inputs}", *ROWS[name], name=name, inputs=inputs)
            for inputs in dict.fromkeys(self.inputs)
            for name in dict.fromkeys(self.row)
        ]

    def train_options(self, folder: RunFolder, row: Row, seed: int) -> TrainOptions:
        """Return the options of `ttm train` for one training."""
        recipe = TrainOptions(self.data, folder.training, validations=4, device="cpu")
        if self.config is not None:
            recipe = with_file(recipe, self.config)
        is_resnet, is_paper = row.name == "bc-resnet", row.inputs == "head"
        return replace(
            recipe,
            data=self.data,
            out=folder.training,
            core=row.core,
            core_options=row.options,
            steps=self.steps,
            minutes=None,
            resume=folder.can_resume,
            vision_model=RESNET if is_resnet else None,
            vision_weights=self.vision_weights[is_resnet],
            choices=Choices((self.camera,), (NONE,)) if is_paper else Choices(),
            seed=seed,
            threads=self.workers,
        )

    def run(self) -> int:
        """Make what is missing, print and write the report, and return the exit code."""
        require_some(options(self, "row", "inputs", "seeds", "task"))
        require_at_least(1, options(self, "steps", "episodes", "workers"))
        require_at_least(0, {"--seeds": min(self.seeds)})
        require_svg(self.plot)
        for row in self.variants:
            self.train_options(RunFolder(self.out), row, 0).check()
        return run_in_pieces(self, Figure6Runner, Figure6Report)


class Figure6Runner(StudyRunner):
    """Makes what is missing of the study. Trainings that see alike share the features of frozen vision."""

    def __init__(self, options: StudyFigure6Command) -> None:
        """Raise `UserError` if tasks or variation are wrong, before anything is made."""
        facts = inspect_env(options.env)
        vary = facts.variant(options.vary)
        plain = options.train_options(RunFolder(options.out), options.variants[0], 0).plain()
        settings = {name: value for name, value in plain.items() if name not in NOT_SHARED}
        settings |= {name: getattr(options, name) for name in ("camera", "env")}
        settings |= {"vary": vary, "vision_weights": list(options.vision_weights)}
        super().__init__(options, settings, facts.choose(options.task), [Condition(vary=vary)])
        self._caches: dict[tuple[str, Choices], FeatureCache] = {}

    def _core(self, variant: Variant) -> CoreConfig:
        return chosen_network(self._train_options(RunFolder(Path()), variant, 0)).core

    def _features(self, variant: Variant) -> FeatureCache | None:
        wanted = self._train_options(RunFolder(Path()), variant, 0)
        seen = policy_to_see_as(wanted) if wanted.vision.freeze_vision else None
        key = wanted.vision_weights, wanted.choices
        if seen is not None and key not in self._caches:
            self._caches[key] = FeatureCache(seen, open_data(wanted, None).spec.cameras)
        return self._caches.get(key)

    def _begin(self, folder: RunFolder, variant: Variant, seed: int) -> dict[str, Any]:
        wanted = self._train_options(folder, variant, seed)
        policy = Policy(open_data(wanted, None).spec, chosen_network(wanted))
        sizes = [sum(p.numel() for p in part.parameters()) for part in (policy.core, policy)]
        return dict(zip(FACTS[4:], (*sizes, wanted.steps, None), strict=True))


class Figure6Report(Report):
    """Makes tables and picture from figures."""

    notes = NOTES

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures)
        labels = {i: {r: f"{r}, {i}" for r in ROWS} for i in get_args(InputsName)}
        known = {i: {r: v for r, v in of.items() if v in self.variants} for i, of in labels.items()}
        self.settings = {inputs: rows for inputs, rows in known.items() if rows}
        """Setting of inputs -> row -> variant."""
        self.variants = [name for rows in self.settings.values() for name in rows.values()]
        groups = {t.replace("_", " "): (t,) for t in self.tasks if len(self.tasks) > 1}
        self.columns: dict[str, Collection[str]] = {ALL: self.tasks, **groups}

    def heading(self) -> str:
        """Return the text above the tables."""
        of, number = self.figures.settings, len(self.figures.trainings)
        states = max((each.episodes for each in self.figures.choices), default=0)
        steps, vary = of.get("steps"), of.get("vary") or "nothing"
        return f"{number} trainings of {steps} steps, {states} states a group; varied: {vary}"

    def tables(self) -> list[TitledTable]:
        """Return success, differences of ours over all groups and group by group, and costs."""
        tables, found = list[TitledTable](), self.figures.choices
        groups = {name: tasks for name, tasks in self.columns.items() if name != ALL}
        for inputs, rows in self.settings.items():
            tables.append(success_table(f"Success in %, {inputs}", found, rows, self.columns))
            for columns in ({ALL: self.tasks}, groups):
                title = f"Paired differences in points, {inputs}"
                tables.append(differences_table(title, found, {OURS: "", **rows}, columns))
        return [*(table for table in tables if table.rows), self._costs()]

    def draw(self) -> str:
        """Return an SVG with a panel for all groups and one for each, for each setting of inputs."""
        return draw_rates(
            {
                f"{column}, {inputs}": [
                    Point(row, None, pooled(found))
                    for row, name in rows.items()
                    if (found := select(self.figures.choices, name, tasks))
                ]
                for inputs, rows in self.settings.items()
                for column, tasks in self.columns.items()
            }
        )
