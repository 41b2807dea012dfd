"""`ttm study mikasa`: how often does a policy solve MIKASA-Robo's memory tasks, and by its memory?

For each task demonstrations are collected, one policy is trained for each seed, and each is evaluated
with its memory left alone, erased when it is needed, and exchanged with that of another cue. What is
there is not made again, so that the same command goes on after a kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tyro.conf import Suppress

from ttm.datasets.description import Choices
from ttm.policy.errors import UserError, options, require_at_least, require_some
from ttm.sim.collect import CollectCommand
from ttm.sim.condition import LIVE, NOISE, ProbeName, conditions_of
from ttm.sim.environment import inspect_env, require_memory_tasks
from ttm.sim.mikasa import MIKASA
from ttm.sim.results import Rate
from ttm.training.console import compact_table, print_progress
from ttm.training.options import (
    ACTIONS,
    FrozenVisionConfig,
    LossConfig,
    OptimizationConfig,
    TrainOptions,
    with_file,
)
from ttm.training.run_log import CONFIG
from ttm.training.sequence_model import split_sight
from ttm.training.study.common import percent, print_results
from ttm.training.study.suite import OURS_OPTIONS, RunFolder
from ttm.training.train import train

SIZES = ("memory_size=16", "process_size=4", "mlp_size=256")
STEPS = {"take_it_back": 2000}
"""Of a training, where the error still falls after 700."""
DEMONSTRATIONS = "demonstrations"
ERASE: ProbeName = "erase"
SWAP: ProbeName = "swap"
MEASURES = ("success", "right choice", "erased", "exchanged", "donor's")
NOTES = """success, right choice: with the memory left alone; in per cent, with Wilson's 95 % interval
erased, exchanged: right choices if the memory is erased, or exchanged with another cue's, when it is needed
donor's: choices that the exchanged memory asked for"""


@dataclass(frozen=True)
class Row:
    """How often the policy of one training did what is measured; `MEASURES` names it."""

    task: str
    seed: int
    rates: tuple[Rate, ...]


@dataclass(frozen=True)
class StudyMikasaCommand:
    """Train policies on MIKASA-Robo's memory tasks, and evaluate them with and without their memory.

    training/study/README.md says what has to be installed. OUT receives 700 demonstrations of each task
    (unless ttm collect has put as many there), a training for each seed, evaluations on 100 initial
    states each, and figures.json. The same command goes on where it was stopped.

    Example: ttm study mikasa --task remember_color_3 --config mine.yaml --out runs/mine
    """

    task: tuple[str, ...] = ("remember_color_3", "take_it_back")
    """Tasks of the environment. Each has demonstrations and trainings of its own."""
    config: Path | None = None
    """A YAML file of options of ttm train, in place of the study's own recipe."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training for each seed, of weights and batches."""
    demonstrations: Suppress[int] = 700
    """Demonstrations of each task, unless OUT/TASK/demonstrations holds as many already."""
    episodes: Suppress[int] = 100
    """Initial states for each evaluation. No demonstration started from them."""
    env: Suppress[str] = MIKASA
    """Gymnasium ID of the environment, which may be another one with memory tasks and an expert."""
    workers: int = 1
    """Processes that share the episodes, and threads of a training."""
    out: Path = Path("runs/mikasa")
    """Folder of everything that the study makes."""

    def train_options(self, task: str, folder: RunFolder, seed: int) -> TrainOptions:
        """Return the options of `ttm train` for one training."""
        recipe = TrainOptions(
            data=(),
            out=folder.training,
            core="ttm",
            core_options=(*split_sight(OURS_OPTIONS)[0], *SIZES),
            steps=STEPS.get(task, 700),
            vision_model="efficientnet-lite0",
            vision_weights="imagenet",
            choices=Choices(cameras=("hand", "base")),  # the first one is remembered
            sight_tokens=6,
            image_size=64,
            window="episode",
            vision=FrozenVisionConfig(freeze_vision=True),
            optimization=OptimizationConfig(learning_rate=2e-3),
            loss=LossConfig(weigh_starts=8.0),
            validations=4,  # the policy after the last step counts
            device="cpu",
        )
        if self.config:
            recipe = with_file(TrainOptions(data=(), out=folder.training), self.config)
        return replace(
            recipe,
            data=(str(self.out / task / DEMONSTRATIONS),),
            out=folder.training,
            resume=folder.can_resume,
            seed=seed,
            threads=self.workers,
        )

    def run(self) -> int:
        """Make what is missing; print the rates and write them. Return the exit code."""
        require_some(options(self, "task", "seeds"))
        require_at_least(1, options(self, "demonstrations", "episodes", "workers"))
        tasks = inspect_env(self.env).choose(self.task)
        self.train_options(tasks[0], RunFolder(self.out), 0).check()
        require_memory_tasks(self.env, tasks, "ttm study mikasa")
        rows = []
        for task in tasks:
            data = self.out / task / DEMONSTRATIONS
            if len(list(data.glob("*.hdf5"))) < self.demonstrations:
                CollectCommand(data, (task,), self.env, self.demonstrations, self.workers).run()
            for seed in self.seeds:
                folder = RunFolder(self.out / task / f"seed_{seed}")
                with folder.claimed() as mine:
                    if not mine:
                        print_progress(f"{folder.path}: another process works on it")
                        continue
                    if code := self._train(task, folder, seed):
                        return code
                    rows.append(Row(task, seed, tuple(self._rates(task, folder))))
        self._report(rows)
        return 0

    def _train(self, task: str, folder: RunFolder, seed: int) -> int:
        """Train unless that is done. Raises `UserError` if it was done with other options."""
        wanted = self.train_options(task, folder, seed)
        if folder.training_result is None:
            print_progress(f"{folder.path}: training")
            return train(wanted)
        held, given = with_file(wanted, folder.training / CONFIG).plain(), wanted.plain()
        for name in given.keys() - {"out", "threads", *ACTIONS}:
            if held[name] != given[name]:
                raise UserError(
                    f"{name} is {given[name]}, but {folder.path} was trained with {held[name]}; give the "
                    "options that it was trained with, or another --out"
                )
        return 0

    def _rates(self, task: str, folder: RunFolder) -> Iterator[Rate]:
        """Evaluate what is not evaluated yet, and yield the rates that `MEASURES` names."""
        given = {name: getattr(self, name) for name in ("episodes", "env", "workers")}
        for condition in conditions_of((), (LIVE, ERASE, SWAP), "hidden", NOISE):
            place, label = folder.evaluations / condition.folder, str(folder.path)
            result = folder.evaluation(place, task, condition, label=label, **given).tasks[task]
            if condition.probe == LIVE:
                yield result.success
            yield result.choices or Rate(0, 0)
            if condition.probe == SWAP:
                yield result.donor_choices or Rate(0, 0)

    def _report(self, rows: list[Row]) -> None:
        """Print the rates of each training, and of those of each task together; write them."""
        table = compact_table(f"Episodes in {self.env}", ("task", "seed", *MEASURES))
        for task in dict.fromkeys(row.task for row in rows):
            of_task = [row for row in rows if row.task == task]
            for row in of_task:
                table.add_row(task, str(row.seed), *(percent(rate, 0) for rate in row.rates))
            for_all = [
                Rate(sum(each.count for each in same), sum(each.episodes for each in same))
                for same in zip(*(row.rates for row in of_task), strict=True)
            ]
            table.add_row(task, "all", *(percent(rate, 0) for rate in for_all))
        figures = [{**asdict(row), "measures": MEASURES} for row in rows]
        print_results(table, NOTES, figures=figures, json_path=self.out / "figures.json")
